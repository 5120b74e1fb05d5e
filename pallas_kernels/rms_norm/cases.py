"""Named calls of `rms_norm` and `add_rms_norm` for tests and benchmarks alike."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """rows × columns values of a dtype, drawn around zero with that deviation.

    is_small: quick to simulate on a CPU.
    """

    name: str
    rows: int
    columns: int
    dtype: str = "bfloat16"
    deviation: float = 1.0
    is_small: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualCase(Case):
    """Such rows, and what is added to them before they are normed.

    parts: in which it comes. norms_addend: it is normed itself, before it is added.
    """

    parts: int = 1
    norms_addend: bool = False


CASES = (
    Case(name="one row", rows=1, columns=128, is_small=True),
    Case(name="odd vectors", rows=3, columns=640, is_small=True),
    Case(name="float32", rows=2, columns=2304, dtype="float32", is_small=True),
    Case(name="tiny values", rows=2, columns=1024, deviation=1e-3, is_small=True),
    Case(name="large values", rows=2, columns=1024, deviation=1e3, is_small=True),
    Case(name="zeros", rows=2, columns=256, deviation=0.0, is_small=True),
    Case(name="8b decode", rows=64, columns=4096),
    Case(name="8b prefill", rows=512, columns=4096),
    Case(name="70b decode", rows=64, columns=8192),
)

RESIDUAL_CASES = (
    ResidualCase(name="one part", rows=1, columns=128, is_small=True),
    ResidualCase(name="parts", rows=3, columns=640, parts=3, is_small=True),
    ResidualCase(name="float32", rows=2, columns=2304, dtype="float32", parts=2, is_small=True),
    ResidualCase(
        name="norms",
        rows=2,
        columns=1024,
        deviation=1e-3,
        parts=2,
        norms_addend=True,
        is_small=True,
    ),
    ResidualCase(
        name="norms of float32",
        rows=1,
        columns=256,
        dtype="float32",
        deviation=1e3,
        norms_addend=True,
        is_small=True,
    ),
    ResidualCase(name="zeros", rows=2, columns=256, deviation=0.0, parts=2, is_small=True),
    ResidualCase(name="8b decode", rows=64, columns=4096, parts=3),
    ResidualCase(name="8b prefill", rows=512, columns=4096),
    ResidualCase(name="gemma3 12b decode", rows=64, columns=3840, parts=4, norms_addend=True),
    ResidualCase(name="70b decode", rows=64, columns=8192, parts=4),
    ResidualCase(name="the longest rows", rows=64, columns=8192, parts=4, norms_addend=True),
)
