"""Tests of the makers of quantized checkpoints."""
