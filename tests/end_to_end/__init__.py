"""Whole engines: files in, text out."""
