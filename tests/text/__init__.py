"""Tests of jaxinfer/text."""
