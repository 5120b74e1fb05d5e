"""Tests of jaxinfer/config."""
