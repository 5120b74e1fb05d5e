"""Tests of jaxinfer/checkpoint/quant_formats."""
