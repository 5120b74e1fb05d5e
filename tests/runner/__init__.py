"""Tests of jaxinfer/runner."""
