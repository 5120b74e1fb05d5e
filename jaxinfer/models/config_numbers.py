"""DEV. Numbers as config files spell them, checked. Knows no keys and no tensors."""

import math
from collections.abc import Mapping
from typing import Any

from jaxinfer.errors import CheckpointError


def whole_number(raw: Mapping[str, Any], *keys: str, default: int | None = None) -> int:
    """The positive integer under the first of `keys` that is there; all that are must agree.

    Raises:
        CheckpointError: none is there and there is no default, they differ, or it is no such
            number.
    """
    found = {key: raw[key] for key in keys if raw.get(key) is not None}
    values = list(found.values()) or ([] if default is None else [default])
    if any(type(value) is not int or value < 1 or value != values[0] for value in values):
        said = ", ".join(f"{key}={value!r}" for key, value in found.items())
        raise CheckpointError(f"{said} must be one positive integer; mend the config")
    if not values:
        raise CheckpointError(
            f"the config lacks {' or '.join(keys)}, which the model needs; add it"
        )
    return values[0]


def real_number(raw: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """The positive finite number under `key`.

    Raises:
        CheckpointError: it is no such number, or is absent and has no default.
    """
    value = default if raw.get(key) is None else raw[key]
    if value is None or type(value) not in (int, float) or not 0 < value < math.inf:
        raise CheckpointError(f"{key}={value!r} must be a positive number; mend the config")
    return float(value)


def softcap(raw: Mapping[str, Any], key: str, default: float = 0.0) -> float:
    """The cap under `key`; null and 0 are none.

    Raises:
        CheckpointError: it is neither of them nor a positive number.
    """
    value = raw.get(key, default)
    return real_number({key: value}, key) if value else 0.0
