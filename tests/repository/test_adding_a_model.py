"""What docs/adding_a_model.md quotes is what the code says."""

import re

from tests.repository.tree import ROOT

GUIDE = (ROOT / "docs/adding_a_model.md").read_text(encoding="utf-8")


def test_the_worked_example_is_the_code() -> None:
    source = (ROOT / "jaxinfer/models/olmo2.py").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        assert block in source


def test_the_files_it_names_are_there() -> None:
    folders = ("", "jaxinfer", "jaxinfer/models", "docs")
    for name in set(re.findall(r"`([\w/]+\.(?:py|md))`", GUIDE)):
        assert any((ROOT / folder / name).is_file() for folder in folders), name


def test_a_family_is_short() -> None:
    """Under 120 lines, and it says what differs: Gemma 3 with its two ropes is the longest."""
    beside = {"__init__", "layer_kinds", "leaves", "registry", "spec", "transformer"}
    for path in (ROOT / "jaxinfer/models").glob("*.py"):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        assert path.stem in beside or lines < 120, path.name
