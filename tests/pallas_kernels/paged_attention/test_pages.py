"""Rows as codes and back: against NumPy, at the ends of the range, in bits for any row count."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pallas_kernels.paged_attention.pages import (
    as_floats,
    as_stored,
    round_by_head,
    round_by_token,
)
from tests.pallas_kernels.paged_attention.coded import fp8_codes, int8_codes

BY_TOKEN, BY_HEAD = jax.jit(round_by_token), jax.jit(round_by_head)
FACTORS = np.array([0.01, 1.0, 3.0], np.float32)


def rows(*shape: int, spread: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(0).normal(size=shape) * spread).astype(np.float32)


@pytest.mark.parametrize("spread", [1e-6, 1.0, 1e6])
def test_int8_codes_are_the_nearest(spread: float) -> None:
    tokens = rows(50, 3, 64, spread=spread)
    codes, scales = (np.asarray(part) for part in BY_TOKEN(tokens))
    expected, steps = int8_codes(tokens)
    np.testing.assert_array_equal(scales, steps)
    assert codes.dtype == np.int8 and np.abs(codes.astype(int)).max() == 127
    assert (codes != expected).mean() < 1e-3  # on a tie either neighbour is the nearest
    back = codes * scales.astype(np.float32)[..., None]
    error = np.abs(tokens - back) / scales.astype(np.float32)[..., None]
    assert error.max() <= 0.5 * (1 + 1e-5)


def test_fp8_codes_are_the_nearest_and_end_at_the_largest() -> None:
    tokens = rows(50, 3, 64) * FACTORS[:, None]
    tokens[0, :, :2] = [1e9, -1e9]
    codes = np.asarray(BY_HEAD(tokens, FACTORS)).astype(np.float32)
    assert codes[0, :, :2].tolist() == [[448.0, -448.0]] * 3
    expected = fp8_codes(tokens, FACTORS[:, None]).astype(np.float32)
    assert (codes != expected).mean() < 1e-3
    scaled = tokens / FACTORS[:, None]
    error = np.abs(codes - np.clip(scaled, -448, 448))
    assert (error <= np.maximum(np.abs(scaled) / 16, 2.0**-10) * (1 + 1e-5))[1:].all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_still_seen(value: float) -> None:
    """Promise 11: a row that went wrong must not become a sound one; its neighbours stay."""
    tokens = rows(4, 3, 16)
    tokens[2, 1, 5] = value
    codes, scales = (np.asarray(part) for part in BY_TOKEN(tokens))
    with np.errstate(invalid="ignore"):
        back = codes * scales.astype(np.float32)[..., None]
    assert np.isnan(back[2, 1]).all() and np.isfinite(np.delete(back, 2, axis=0)).all()
    fixed = np.asarray(BY_HEAD(tokens, FACTORS)).astype(np.float32)
    assert np.isnan(fixed[2, 1, 5]) and np.isnan(fixed).sum() == 1


def test_rows_of_zeros_are_zeros() -> None:
    codes, scales = BY_TOKEN(np.zeros((2, 3, 16), np.float32))
    assert not np.asarray(codes).any() and not np.asarray(scales, np.float32).any()


def test_bits_do_not_depend_on_the_number_of_rows() -> None:
    tokens = rows(64, 3, 96)
    whole = [np.asarray(part) for part in (*BY_TOKEN(tokens), BY_HEAD(tokens, FACTORS))]
    for first, count in ((0, 2), (5, 3), (60, 4), (17, 1)):
        some = tokens[first : first + count]
        for part, all_of_it in zip((*BY_TOKEN(some), BY_HEAD(some, FACTORS)), whole, strict=True):
            expected = all_of_it[first : first + count]
            assert np.asarray(part).tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("dtype", "held"),
    [
        ("uint16", ml_dtypes.bfloat16),
        ("uint8", ml_dtypes.float8_e4m3fn),
        ("bfloat16", ml_dtypes.bfloat16),
        ("int8", np.int8),
    ],
)
def test_stored_numbers_come_back(dtype: str, held: type) -> None:
    values = (rows(5, 7) * 20).astype(held)
    stored = as_stored(jnp.asarray(values), jnp.dtype(dtype))
    assert str(stored.dtype) == dtype
    np.testing.assert_array_equal(np.asarray(as_floats(stored)), values.astype(np.float32))
