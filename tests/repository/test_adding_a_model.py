"""What docs/adding_a_model.md quotes is what the code says."""

import re

from jaxinfer.models.registry import ARCHITECTURES
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
    """A dense one under 100 lines, as the page says; experts take some more."""
    for one in ARCHITECTURES:
        text = (ROOT / f"jaxinfer/models/{one.name}.py").read_text(encoding="utf-8")
        assert len(text.splitlines()) < (120 if one.has_experts else 100), one.name
