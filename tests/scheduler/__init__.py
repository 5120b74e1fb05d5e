"""Tests of jaxinfer/scheduler."""
