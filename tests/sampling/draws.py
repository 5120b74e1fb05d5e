"""Programs that draw, compiled once a shape for all tests of a module."""

from typing import Any

import jax
import numpy as np

from jaxinfer.config.step_plan import StepResult
from jaxinfer.sampling.draw import PACKED_COLUMNS, draw, pack
from tests.sampling.rows import Seats, poisoned_state, sampling_rows, unpacked

LOGITS = np.array([1.2, 0.4, -0.3, 2.0, 0.0, -5.0], np.float32)


def _packed(logits, rows, positions, state, slots, mode="raw"):
    return pack(draw(logits, rows, positions, state, slots, logprobs_mode=mode))


seated_program = jax.jit(_packed, static_argnames="mode")


def program(logits: np.ndarray, rows: Any, positions: np.ndarray) -> jax.Array:
    """Rows without limits, in slots past the end of a poisoned state."""
    slots = np.full(logits.shape[0], 2, np.int32)
    return seated_program(logits, rows, positions, poisoned_state(2, logits.shape[1]), slots)


def draw_seated(logits: np.ndarray, made: Seats, mode: str = "raw") -> StepResult:
    operands = (logits, made.rows, made.positions, made.state, made.slots)
    return unpacked(seated_program(*operands, mode=mode))


def draw_rows(logits: np.ndarray, params: list[dict[str, Any]], positions: Any) -> StepResult:
    packed = program(logits, sampling_rows(*params), np.asarray(positions, np.int32))
    assert packed.shape == (len(params), PACKED_COLUMNS)
    return unpacked(packed)


def random_logits(rows: int, *, scale: float = 1.0, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=(rows, 300))
    return (scale * values).astype(np.float32)
