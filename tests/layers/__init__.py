"""Tests of jaxinfer/layers."""
