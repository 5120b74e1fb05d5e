"""Tests of pallas_kernels/rotate_write."""
