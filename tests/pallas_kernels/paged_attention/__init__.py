"""Tests of pallas_kernels/paged_attention."""
