"""HOST. Typed access to what a config file says, with errors that name the file and the key.

Knows no particular keys: `hf_config` and `gguf_config` do.
"""

import math
from collections.abc import Mapping
from typing import Any

from jaxinfer.errors import CheckpointError

MAX_LAYERS = 4096


class ConfigReader(dict[str, Any]):
    """The entries of a config; a needed key that is absent is a CheckpointError, not a KeyError."""

    def __init__(self, entries: Mapping[str, Any], place: str) -> None:
        super().__init__(entries)
        self.place = place

    def __missing__(self, key: str) -> Any:
        raise CheckpointError(f"{self.place} lacks the key {key!r}, which the model needs; add it")

    def whole(self, key: str) -> int:
        """A positive integer."""
        value = self[key]
        if type(value) is not int or value < 1:
            raise CheckpointError(
                f"{self.place}: {key}={value!r} must be a positive integer; mend it"
            )
        return value

    def number(self, key: str) -> float:
        """A positive finite number."""
        value = self[key]
        if type(value) not in (int, float) or not 0 < value < math.inf:
            raise CheckpointError(
                f"{self.place}: {key}={value!r} must be a positive number; mend it"
            )
        return float(value)

    def flag(self, key: str) -> bool:
        """True or false."""
        if type(self[key]) is not bool:
            raise CheckpointError(f"{self.place}: {key}={self[key]!r} must be true or false")
        return self[key]

    def token_ids(self, key: str) -> tuple[int, ...]:
        """Token ids given as one id, a list of them, or not at all."""
        value = self.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        for token in ids:
            if type(token) is not int or token < 0:
                raise CheckpointError(
                    f"{self.place}: {key}={value!r} must be a token id of 0 or more, or a list of "
                    "them; mend it"
                )
        return tuple(ids)

    def num_layers(self, key: str) -> int:
        """A layer count that per-layer lists can be made for."""
        if self.whole(key) > MAX_LAYERS:
            raise CheckpointError(
                f"{self.place}: {key}={self[key]} is over {MAX_LAYERS}, the most a model may have"
            )
        return self[key]
