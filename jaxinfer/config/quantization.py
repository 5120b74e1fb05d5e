"""HOST. How matrices are rounded at load, and in which form weights run: what was asked, decided.

Knows names of layers, no tensors; the rounding itself is `checkpoint/round_to_nearest.py`'s.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from jaxinfer.errors import ConfigError, UnsupportedError

Method = Literal["int8", "int4", "fp8"]
METHODS = ("int8", "int4", "fp8")
ACTIVATIONS = ("float", "checkpoint")
WEIGHT_FORMS = ("auto", "packed", "dequantized")

_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_CHECKPOINT_METHODS = ("gptq", "awq", "compressed-tensors", "gguf", "bitsandbytes")
# What is never rounded: the output head and the router of experts.
_ALWAYS_FLOAT = re.compile(r"lm_head|.*\.mlp\.gate|.*router")
_GROUPS = (128, 64, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """Round to nearest at load, symmetric.

    method: of the linear layers. group_size: columns under one scale; -1 is a whole row; None is
    decided: a row for 8 bits, for int4 the largest of 128, 64 and 32 that divides the width.
    float_ends: decoder layers at the beginning and at the end that stay float. overrides: pattern
    of layer names → method or "float"; the first that matches decides, before all else.
    """

    method: Method
    group_size: int | None = None
    float_ends: int = 1
    overrides: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        _check_method("method", self.method, METHODS)
        size = self.group_size
        if size is not None and (type(size) is not int or not (size == -1 or size >= 2)):
            raise ConfigError(
                f"quantization group_size={size!r} must be None (decide), -1 (a whole row) or at "
                "least 2"
            )
        if type(self.float_ends) is not int or self.float_ends < 0:
            raise ConfigError(f"quantization float_ends={self.float_ends!r} must be 0 or more")
        for pattern, method in self.overrides:
            _check_method(f"overrides[{pattern!r}]", method, (*METHODS, "float"))
            try:
                re.compile(pattern)
            except re.error as error:
                raise ConfigError(f"quantization overrides {pattern!r}: {error}") from error

    def method_of(self, layer: str, num_layers: int) -> str:
        """How linear layer `layer` ("model.layers.3.mlp.up_proj") is kept: a method or "float"."""
        for pattern, method in self.overrides:
            if re.fullmatch(pattern, layer):
                return method
        place = _LAYER.match(layer)
        number = int(place[1]) if place else 0
        at_an_end = not self.float_ends <= number < num_layers - self.float_ends
        return "float" if at_an_end or _ALWAYS_FLOAT.fullmatch(layer) else self.method

    def group_of(self, method: str, columns: int) -> int:
        """Columns under one scale in a layer of that width."""
        if self.group_size is not None:
            return columns if self.group_size == -1 else min(self.group_size, columns)
        if method != "int4":
            return columns
        return next((size for size in _GROUPS if columns % size == 0), min(_GROUPS[0], columns))


def quantization_from(value: Any) -> Quantization | None:
    """The record of an option: None, a method's name, or a mapping of `Quantization`'s fields.

    Raises:
        ConfigError: a wrong value. UnsupportedError: a method of checkpoints, which is not asked
            for but read from them.
    """
    if value is None or isinstance(value, Quantization):
        return value
    if isinstance(value, str):
        return Quantization(method=value)  # type: ignore[arg-type]  # checked there
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"quantization={value!r} must be None, one of {', '.join(METHODS)}, or a mapping"
        )
    known = [field.name for field in fields(Quantization)]
    for key in value:
        if key not in known:
            raise ConfigError(f"quantization has no {key!r}; it has: {', '.join(known)}")
    entries = dict(value)
    overrides = entries.get("overrides", ())
    if isinstance(overrides, Mapping):
        entries["overrides"] = tuple(overrides.items())
    return Quantization(**{"method": None, **entries})  # type: ignore[arg-type]


def choose_weight_form(
    asked: str, platform: str, num_packed: int, why_decoded: str | None = None
) -> tuple[str, str]:
    """("packed" or "dequantized", why), for `num_packed` matrices that could be either.

    why_decoded: what speaks against packed ones on a GPU, None for nothing.
    """
    if not num_packed:
        return "dequantized", "there is nothing that could stay packed"
    if asked != "auto":
        return asked, f"weights={asked!r} was asked for"
    if platform == "cpu":
        return "dequantized", "a CPU is fastest with weights decoded once, at load"
    if why_decoded:
        return "dequantized", why_decoded
    return "packed", "fewer bytes a step, and kernels that decode on the way"


def _check_method(name: str, value: Any, known: tuple[str, ...]) -> None:
    if value in _CHECKPOINT_METHODS:
        raise UnsupportedError(
            f"quantization={value!r} is not made at load; known: {', '.join(METHODS)}; a quantized "
            "checkpoint says itself how it is stored: leave the option out"
        )
    if not isinstance(value, str) or value not in known:
        raise ConfigError(f"quantization={value!r} ({name}) must be one of {', '.join(known)}")
