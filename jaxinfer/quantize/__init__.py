"""Makers of quantized checkpoints, and what judges them."""
