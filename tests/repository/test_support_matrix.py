"""docs/support.md is what the registry and the fixtures say."""

from jaxinfer.models.registry import ARCHITECTURES
from tests.support.support_matrix import PAGE, render


def test_the_page_is_current() -> None:
    """Stale? `python -m tests.support.support_matrix` writes it."""
    assert PAGE.read_text(encoding="utf-8") == render()


def test_every_family_is_verified_somewhere() -> None:
    lines = [line for line in render().splitlines() if line.startswith("| ")]
    for architecture in ARCHITECTURES:
        rows = [line for line in lines if line.startswith(f"| {architecture.name} |")]
        assert len(rows) == 3 and all("verified" in row for row in rows), architecture.name
