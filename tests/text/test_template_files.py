"""Where chat templates are found, and which one a request gets."""

import json
from pathlib import Path

import pytest

from jaxinfer.errors import CheckpointError, RequestError
from jaxinfer.text.template_files import choose_template, templates_of_entry, templates_of_folder

NAMED = [{"name": "tool_use", "template": "U"}, {"name": "default", "template": "D"}]


def test_the_file_beats_the_config(tmp_path: Path) -> None:
    """BB-17 (torchtitan#2455, tabbyAPI#374, llmman#461)."""
    config = {"chat_template": "T"}
    assert templates_of_folder(tmp_path, config) == {"default": "T"}
    (tmp_path / "chat_template.jinja").write_text("J", encoding="utf-8")
    assert templates_of_folder(tmp_path, config) == {"default": "J"}
    assert choose_template(templates_of_folder(tmp_path, config), argument="A") == "A"


def test_further_files(tmp_path: Path) -> None:
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("R", encoding="utf-8")
    (tmp_path / "chat_template.jinja").write_text("J", encoding="utf-8")
    assert templates_of_folder(tmp_path, {}) == {"default": "J", "rag": "R"}


def test_the_old_json_file(tmp_path: Path) -> None:
    content = json.dumps({"chat_template": "L"})
    (tmp_path / "chat_template.json").write_text(content, encoding="utf-8")
    assert templates_of_folder(tmp_path, {"chat_template": "T"}) == {"default": "L"}


@pytest.mark.parametrize("entry", [NAMED, NAMED[::-1], {"tool_use": "U", "default": "D"}])
def test_named_templates(entry: object) -> None:
    """BB-17: default without tools, tool_use with tools, whatever the order."""
    templates = templates_of_entry(entry, "here")
    assert choose_template(templates) == "D"
    assert choose_template(templates, tools=[]) == "D"
    assert choose_template(templates, tools=[{"name": "f"}]) == "U"
    assert choose_template(templates, argument="tool_use") == "U"


def test_no_default_lists_the_names() -> None:
    """BB-17: refuse, listing the names."""
    with pytest.raises(RequestError, match=r"rag.*tool_use"):
        choose_template({"tool_use": "U", "rag": "R"})
    assert choose_template({"tool_use": "U", "rag": "R"}, tools=[1]) == "U"


def test_no_template_at_all() -> None:
    with pytest.raises(RequestError, match="chat_template"):
        choose_template({})
    with pytest.raises(RequestError, match="chat_template=5"):
        choose_template({}, argument=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("entry", [5, [1], [{"name": "x"}], {"default": 5}])
def test_an_entry_of_another_form(entry: object) -> None:
    with pytest.raises(CheckpointError, match="somewhere"):
        templates_of_entry(entry, "somewhere")


def test_a_file_too_long_or_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match="UTF-8"):
        templates_of_folder(tmp_path, {})
    (tmp_path / "chat_template.jinja").write_bytes(b"x" * (2**20 + 1))
    with pytest.raises(CheckpointError, match="1048577"):
        templates_of_folder(tmp_path, {})
