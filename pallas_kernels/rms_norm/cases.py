"""Named calls of `rms_norm` for tests and benchmarks alike."""

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
