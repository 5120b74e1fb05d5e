"""HOST. How a checkpoint is to be quantized: one frozen record, checked when it is made.

Knows options and their rules, no model; what a rule says of widths and names is checked by
`matrix_plan` as soon as the model is known.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Literal

from jaxinfer.errors import ConfigError, UnsupportedError

Method = Literal["rtn", "gptq", "awq", "smoothquant"]
GroupSize = int | Literal["auto"]

METHODS = ("rtn", "gptq", "awq", "smoothquant")
FORMATS = ("compressed-tensors", "native")
DTYPES = ("auto", "bfloat16", "float16", "float32")
BITS = (4, 8)
# What a method alone understands, and what it means where nothing is said.
_OWN_OPTIONS: Mapping[str, tuple[str, Any]] = MappingProxyType(
    {
        "act_order": ("gptq", True),
        "damping": ("gptq", 0.01),
        "smoothing": ("smoothquant", 0.5),
    }
)
_CALIBRATED = ("gptq", "awq", "smoothquant")
_CALIBRATION = MappingProxyType({"calibration_tokens": 32768, "sequence_length": 512})


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides the bytes of the result, beside the model and the text.

    group_size: columns under one scale, -1 for a whole row, "auto" for the first of 128, 64, 32 and
    16 that divides a matrix's width. protect: names of matrices or of modules above them, or
    patterns "re:…", that stay float. act_order: GPTQ takes columns by falling importance.
    damping: share of the Hessian's mean diagonal that is added to it. smoothing: SmoothQuant's
    exponent. dtype: of what stays float and of scales; "auto" is the source's.
    format: of the result.
    """

    method: Method
    bits: int
    group_size: GroupSize
    symmetric: bool
    act_order: bool
    damping: float
    smoothing: float
    calibration_tokens: int
    sequence_length: int
    protect: tuple[str, ...]
    dtype: str
    format: str

    def __post_init__(self) -> None:
        for name, known in (("method", METHODS), ("format", FORMATS), ("dtype", DTYPES)):
            _check_known(name, getattr(self, name), known)
        if type(self.bits) is not int or self.bits not in BITS:
            raise ConfigError(f"bits={self.bits!r} must be 4 or 8")
        _check_group_size(self.group_size)
        for name, low, high in (("damping", 0.0, 1.0), ("smoothing", 0.0, 1.0)):
            value = getattr(self, name)
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not (low < value < high)
            ):
                raise ConfigError(f"{name}={value!r} must lie between {low:g} and {high:g}")
        for name in ("calibration_tokens", "sequence_length"):
            value = getattr(self, name)
            if type(value) is not int or value < 2:
                raise ConfigError(f"{name}={value!r} must be a whole number of at least 2")
        if self.method == "smoothquant":
            self._check_smoothquant()

    @property
    def is_calibrated(self) -> bool:
        """Whether a text is needed."""
        return self.method in _CALIBRATED

    @property
    def rounds_inputs(self) -> bool:
        """Whether the result says that inputs of its layers are to be rounded too."""
        return self.method == "smoothquant"

    def _check_smoothquant(self) -> None:
        if self.bits != 8 or self.group_size != -1 or not self.symmetric:
            sign = "symmetric" if self.symmetric else "asymmetric"
            raise UnsupportedError(
                f"method='smoothquant' with bits={self.bits}, group_size={self.group_size} and "
                f"{sign} codes is not made: weights and inputs are int8, a scale a row; leave bits,"
                " group_size and symmetric out, or take gptq or awq"
            )


def make_recipe(method: str, **options: Any) -> Recipe:
    """A recipe from what was given; everything else as the method has it.

    Args:
        method: "rtn", "gptq", "awq" or "smoothquant".
        options: other fields of `Recipe`.

    Raises:
        ConfigError: an unknown option, a wrong value, or an option of another method.
        UnsupportedError: bits or groups that the method is not made for.
    """
    _check_known("method", method, METHODS)
    known = [field.name for field in fields(Recipe)][1:]
    for name in options:
        if name not in known:
            raise ConfigError(f"unknown option {name!r}; {_nearest(name, known)}")
        owner = _OWN_OPTIONS.get(name, (method,))[0]
        if owner != method or (name in _CALIBRATION and method not in _CALIBRATED):
            raise ConfigError(
                f"{name}={options[name]!r} means nothing to method={method!r}; leave it out"
            )
    bits = options.get("bits", 8 if method == "smoothquant" else 4)
    own = {name: value for name, (_, value) in _OWN_OPTIONS.items()}
    given = {
        "bits": bits,
        "group_size": "auto" if bits == 4 else -1,
        "symmetric": True,
        "dtype": "auto",
        "format": "compressed-tensors",
        **own,
        **_CALIBRATION,
        **options,
    }
    return Recipe(method=method, **{**given, "protect": _names(given.get("protect", ()))})  # type: ignore[arg-type]  # checked there


def _names(value: Sequence[str]) -> tuple[str, ...]:
    if isinstance(value, str) or not all(isinstance(name, str) and name for name in value):
        raise ConfigError(f"protect={value!r} must be a list of names; give a list of strings")
    return tuple(value)


def _check_group_size(value: Any) -> None:
    if value == "auto" or (type(value) is int and (value == -1 or value >= 2)):
        return
    raise ConfigError(
        f"group_size={value!r} must be 'auto', -1 (a whole row) or at least 2 columns"
    )


def _check_known(name: str, value: Any, known: Sequence[str]) -> None:
    if value not in known:
        raise ConfigError(f"{name}={value!r} must be one of them: {_nearest(str(value), known)}")


def _nearest(value: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(value, known, n=1)
    hint = f" (nearest: {near[0]!r})" if near else ""
    return ", ".join(known) + hint
