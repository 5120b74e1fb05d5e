"""The demo models for tests marked `weights`: fetched once, then from the cache."""

from pathlib import Path

import pytest

from jaxinfer.checkpoint.demo_models import fetch_demo
from jaxinfer.errors import CheckpointError


def demo_path(name: str) -> Path:
    """The demo model's file; skips the test, with the reason, where it cannot be had."""
    try:
        return fetch_demo(name, show_progress=False)
    except CheckpointError as error:
        pytest.skip(f"demo model {name} cannot be had: {error}")
