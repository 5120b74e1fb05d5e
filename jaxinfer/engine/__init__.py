"""JOINT. Assembly, the loop, outputs and metrics."""
