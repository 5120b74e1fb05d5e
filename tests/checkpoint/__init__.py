"""Tests of jaxinfer/checkpoint."""
