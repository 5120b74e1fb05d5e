"""Tests of jaxinfer/sampling."""
