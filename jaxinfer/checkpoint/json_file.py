"""HOST. JSON files of a checkpoint, read with a bound on their size.

Knows no keys: `hf_config` and `safetensors_file` do.
"""

import json
from pathlib import Path
from typing import Any

from jaxinfer.errors import CheckpointError

_MAX_BYTES = 64 * 2**20


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds.

    Raises:
        CheckpointError: no such file, larger than 64 MiB, not JSON, or not an object.
    """
    try:
        num_bytes = path.stat().st_size
        if num_bytes > _MAX_BYTES:
            raise CheckpointError(
                f"{path} has {num_bytes} bytes, at most {_MAX_BYTES} are read; it is not a "
                "config file: check the folder"
            )
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}; check the folder") from error
    return parse_json(content, str(path))


def parse_json(content: bytes, what: str) -> dict[str, Any]:
    """The object that `content` holds; `what` names it in errors. A key twice is an error."""
    try:
        value = json.loads(content.decode("utf-8-sig"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{what} is not valid JSON: {error}; fetch it again") from error
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{what} holds a JSON {type(value).__name__}, it must be an object; fetch it again"
        )
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} stands in it twice")
    return result
