"""docs/support.md is what the registry and the fixtures say."""

from jaxinfer.models.registry import ARCHITECTURES
from tests.support.support_matrix import PAGE, families, render


def test_the_page_is_current() -> None:
    """Stale? `python -m tests.support.support_matrix` writes it."""
    assert PAGE.read_text(encoding="utf-8") == render()


def test_files_with_blocks_are_no_float_files() -> None:
    """A router kept in float32 made a file of blocks count as one of floats."""
    rows = {row[0]: row for row in (line.split(" | ") for line in families().splitlines())}
    floats = {one.name: rows[f"| {one.name}"][4] for one in ARCHITECTURES if one.has_experts}
    assert floats == {"mixtral": "verified", "qwen3_moe": "verified", "gpt_oss": "untested"}


def test_every_family_is_verified_somewhere() -> None:
    lines = [line for line in render().splitlines() if line.startswith("| ")]
    for architecture in ARCHITECTURES:
        rows = [line for line in lines if line.startswith(f"| {architecture.name} |")]
        assert len(rows) == 3 and all("verified" in row for row in rows), architecture.name
