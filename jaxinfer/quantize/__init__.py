"""Makes quantized checkpoints of float ones, and judges them."""
