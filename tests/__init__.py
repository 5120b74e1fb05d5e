"""Tests; folders mirror the two packages."""
