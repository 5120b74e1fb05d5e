"""JOINT. Files to parameters."""
