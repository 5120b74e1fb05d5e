"""Tests of jaxinfer/engine."""
