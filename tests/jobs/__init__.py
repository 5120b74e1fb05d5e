"""Tests of the command line, with a fake LLM."""
