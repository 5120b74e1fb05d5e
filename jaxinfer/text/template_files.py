"""HOST. Where a checkpoint keeps its chat templates, and which one a request means.

Templates are plain strings here; how they are rendered is in chat.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxinfer.errors import CheckpointError, RequestError

MAX_JSON_BYTES = 1 << 25
MAX_TEMPLATE_BYTES = 1 << 20
DEFAULT = "default"


def read_json(path: Path) -> dict[str, Any]:
    """The object in a small JSON file; empty where there is no such file.

    Raises:
        CheckpointError: too large, not JSON, or not an object.
    """
    if not path.is_file():
        return {}
    try:
        value = json.loads(_read_text(path, MAX_JSON_BYTES))
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON ({error}); fetch the file again") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: holds a {type(value).__name__}, must be a JSON object")
    return value


def _read_text(path: Path, limit: int) -> str:
    size = path.stat().st_size
    if size > limit:
        raise CheckpointError(f"{path}: {size} bytes, at most {limit} are read; check the file")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not UTF-8 ({error}); fetch the file again") from None


def templates_of_folder(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates by name; template files replace what tokenizer_config.json holds.

    Args:
        folder: may hold chat_template.jinja, additional_chat_templates/NAME.jinja and
            chat_template.json.
        config: content of tokenizer_config.json.

    Raises:
        CheckpointError: a file or an entry that cannot be read.
    """
    files = {}
    if (folder / "chat_template.jinja").is_file():
        files[DEFAULT] = _read_text(folder / "chat_template.jinja", MAX_TEMPLATE_BYTES)
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        files[path.stem] = _read_text(path, MAX_TEMPLATE_BYTES)
    legacy = folder / "chat_template.json"
    return (
        files
        or templates_of_entry(read_json(legacy).get("chat_template"), str(legacy))
        or templates_of_entry(config.get("chat_template"), str(folder / "tokenizer_config.json"))
    )


def templates_of_entry(entry: Any, where: str) -> dict[str, str]:
    """Templates of a `chat_template` entry: nothing, one string, an object, or a list of names."""
    if entry is None:
        return {}
    if isinstance(entry, str):
        return {DEFAULT: entry}
    if isinstance(entry, list) and all(isinstance(item, dict) for item in entry):
        entry = {item.get("name"): item.get("template") for item in entry}
    if isinstance(entry, dict) and all(
        isinstance(name, str) and isinstance(text, str) for name, text in entry.items()
    ):
        return dict(entry)
    raise CheckpointError(
        f"{where}: chat_template is a {type(entry).__name__} of another form; it must be a string, "
        "or a list of objects with name and template"
    )


def choose_template(
    templates: Mapping[str, str], *, tools: object = None, argument: str | None = None
) -> str:
    """The template source to render.

    Args:
        templates: the checkpoint's templates by name.
        tools: tools of the request; with any, "tool_use" is preferred where it exists.
        argument: the request's own choice: the name of one of `templates`, or a whole template.

    Raises:
        RequestError: there is none to choose; the message lists the names.
    """
    if argument is not None:
        if not isinstance(argument, str):
            raise RequestError(
                f"chat_template={argument!r}: must be a template, or one of {sorted(templates)}"
            )
        return templates.get(argument, argument)
    if tools and "tool_use" in templates:
        return templates["tool_use"]
    if DEFAULT in templates:
        return templates[DEFAULT]
    if templates:
        raise RequestError(
            f"chat_template: this model has no default one, only {sorted(templates)}; "
            "pass chat_template= with one of these names"
        )
    raise RequestError(
        "chat_template: this model has none; pass chat_template= with a jinja template, "
        "or use generate() with a finished prompt"
    )
