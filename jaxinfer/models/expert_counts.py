"""DEV. Numbers of experts as config files spell them. Knows keys, no tensors."""

from collections.abc import Mapping
from typing import Any

from jaxinfer.errors import CheckpointError


def whole_number(raw: Mapping[str, Any], *keys: str) -> int:
    """The positive integer under the first of `keys` that is there; all that are must agree.

    Raises:
        CheckpointError: none is there, they differ, or it is no such number.
    """
    found = {key: raw[key] for key in keys if raw.get(key) is not None}
    values = list(found.values())
    if any(type(value) is not int or value < 1 or value != values[0] for value in values):
        said = ", ".join(f"{key}={value!r}" for key, value in found.items())
        raise CheckpointError(f"{said} must be one positive integer; mend the config")
    if not values:
        raise CheckpointError(f"the config lacks {' or '.join(keys)}, which experts need; add it")
    return values[0]
