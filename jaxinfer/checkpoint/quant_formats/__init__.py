"""HOST. Readers of quantized checkpoints, one file a format; each makes `PackedMatrix` objects."""
