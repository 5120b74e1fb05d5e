"""Problems whose pages hold codes: rounded here in NumPy, with the numbers that they stand for.

Shares no rounding with the package: a code is the nearest one, found by NumPy's own division.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np

from pallas_kernels.paged_attention import HeadScaledPages, Pages, TokenScaledPages
from tests.pallas_kernels.paged_attention.dense import Problem


def code_sides(
    problem: Problem, keys: str, values: str, *, as_bits: bool = False
) -> tuple[Pages, Pages, Problem]:
    """The pages of both sides, and the problem with the keys and values that they stand for.

    Args:
        keys, values: "floats" (bfloat16), "int8" or "fp8".
        as_bits: small floats as unsigned integers.
    """
    k_pages, keys_held = _side(problem.k_pages, problem.keys, keys, as_bits)
    v_pages, values_held = _side(problem.v_pages, problem.values, values, as_bits)
    return k_pages, v_pages, replace(problem, keys=keys_held, values=values_held)


def _side(
    pages: np.ndarray, held: np.ndarray, kind: str, as_bits: bool
) -> tuple[Pages, np.ndarray]:
    def stored(array: np.ndarray, bits: Any) -> Any:
        return jnp.asarray(array.view(bits) if as_bits else array)

    if kind == "int8":
        codes, scales = int8_codes(pages)
        record = TokenScaledPages(jnp.asarray(codes), stored(scales, np.uint16))
        codes, scales = int8_codes(held)
        return record, codes * scales.astype(np.float32)[..., None]
    if kind == "fp8":
        factors = np.linspace(0.01, 0.02, pages.shape[1]).astype(np.float32)
        codes = fp8_codes(pages, factors[:, None, None])
        record = HeadScaledPages(stored(codes, np.uint8), jnp.asarray(factors))
        return record, fp8_codes(held, factors[:, None]).astype(np.float32) * factors[:, None]
    halves = pages.astype(ml_dtypes.bfloat16)
    return stored(halves, np.uint16), held.astype(ml_dtypes.bfloat16).astype(np.float32)


def int8_codes(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[..., D] → codes [..., D] i8 and scales [...] bf16; a row that holds NaN has a NaN scale."""
    scales = (np.abs(rows).max(axis=-1) / 127).astype(ml_dtypes.bfloat16)
    steps = scales.astype(np.float32)[..., None]
    steps = np.where(steps > 0, steps, np.float32(1))  # also in place of NaN
    codes = np.clip(np.round(np.nan_to_num(rows) / steps), -127, 127)
    return codes.astype(np.int8), scales


def fp8_codes(rows: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Nearest codes under the factors, cut off at the largest; NaN stays NaN."""
    return np.clip(rows / factors, -448, 448).astype(ml_dtypes.float8_e4m3fn)
