"""Rules that hold for the whole repository."""
