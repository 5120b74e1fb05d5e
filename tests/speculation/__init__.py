"""Drafting and its control."""
