"""Times a call on the device, and keeps what was measured: rows that become JSON and a table."""

import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import jax
import numpy as np
from jax import lax

# Relative error of a norm against float64 that an op may have, by what it computes in.
TOLERANCE = 1e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One call of one implementation. error: norm of the difference over the norm of the float64
    result, None where only time was measured. rate: in `unit`; share: of what the machine reached
    (copy bandwidth, bf16 matmul), None where that says nothing."""

    section: str
    case: str
    implementation: str
    error: float | None = None
    ms: float | None = None
    rate: float | None = None
    unit: str = ""
    share: float | None = None
    note: str = ""

    @property
    def is_good(self) -> bool:
        return self.error is None or self.error <= TOLERANCE


@dataclass(slots=True)
class Clock:
    """How much of the time that a run may take is left."""

    seconds: float
    start: float = field(default_factory=time.monotonic)

    def left(self) -> float:
        return self.seconds - (time.monotonic() - self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the device reached in this run: bytes/s of a copy, FLOP/s of a bf16 matmul."""

    copy_bytes_per_s: float
    matmul_flops_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a run is made.

    kernels: the implementations beside each other, XLA's first. is_tiny: small shapes, few repeats.
    """

    kernels: tuple[str, ...]
    is_tiny: bool
    clock: Clock
    seed: int
    machine: Machine

    def repeats(self) -> int:
        return 2 if self.is_tiny else 20


def time_on_device(call: Callable[..., Any], arguments: tuple[Any, ...], repeats: int) -> float:
    """Milliseconds of one call: `repeats` of them in one program, the best of three runs.

    In one program the host has nothing to do between calls; each depends on the one before.
    """

    @functools.partial(jax.jit, static_argnames="times")
    def many(arguments: tuple[Any, ...], times: int) -> Any:
        def again(_: Any, held: tuple[Any, ...]) -> tuple[Any, ...]:
            return lax.optimization_barrier((held, call(*held)))[0]

        return lax.fori_loop(0, times, again, arguments)

    def seconds() -> float:
        start = time.perf_counter()
        jax.block_until_ready(many(arguments, repeats))
        return time.perf_counter() - start

    seconds()  # compiles
    return 1000 * min(seconds() for _ in range(3)) / repeats


def relative_error(found: Any, exact: np.ndarray) -> float:
    """norm(found - exact) / norm(exact), infinite where something is not finite."""
    values = np.asarray(found, np.float64)
    if not np.isfinite(values).all():
        return float("inf")
    return float(np.linalg.norm(values - exact) / max(np.linalg.norm(exact), 1e-30))


def with_time(setting: Setting, cases: Any) -> Iterator[Any]:
    """The cases for which there is time; what is left out is missing in the table."""
    for case in cases:
        if setting.clock.left() < 0:
            return
        yield case


def as_json(rows: list[Row]) -> list[dict[str, Any]]:
    return [asdict(row) | {"is_good": row.is_good} for row in rows]
