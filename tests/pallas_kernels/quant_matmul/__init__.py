"""Tests of pallas_kernels/rms_norm."""
