"""Command line and batch jobs."""
