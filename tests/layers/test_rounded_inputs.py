"""Inputs rounded to 8 bits: against NumPy, zeros, and the same bits for any number of rows."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxinfer.layers.linear import matmul
from jaxinfer.layers.rounded_inputs import round_inputs
from jaxinfer.layers.weights import QuantWeight, RoundedInputWeight

X = np.random.default_rng(0).normal(size=(33, 96)).astype(np.float32)


def exact(x: np.ndarray, kind: str, group: int) -> np.ndarray:
    groups = x.astype(np.float64).reshape(len(x), -1, group)
    limit = {"int8": 127, "fp8": 448}[kind]
    scales = np.abs(groups).max(axis=-1, keepdims=True) / limit
    codes = groups / np.where(scales == 0, 1, scales)
    if kind == "fp8":
        codes = codes.astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    else:
        codes = np.rint(codes)
    return (codes * scales).reshape(x.shape)


@pytest.mark.parametrize("group", [96, 32])
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_equals_numpy(kind: str, group: int) -> None:
    found = np.asarray(jax.jit(round_inputs, static_argnums=(1, 2))(X, kind, group))
    np.testing.assert_allclose(found, exact(X, kind, group), rtol=1e-6, atol=1e-7)
    assert 0 < np.abs(found - X).max() < (0.02 if kind == "int8" else 0.15)


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_zeros_and_the_largest_value_are_exact(kind: str) -> None:
    x = X.copy()
    x[3] = 0
    found = np.asarray(round_inputs(jnp.asarray(x), kind, 96))
    assert not found[3].any()
    places = np.abs(x).argmax(axis=1)
    rows = np.arange(len(x))
    np.testing.assert_allclose(found[rows, places], x[rows, places], rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_a_row_s_bits_do_not_depend_on_the_number_of_rows(kind: str, dtype: Any) -> None:
    codes = np.random.default_rng(1).integers(-128, 128, (40, 96)).astype(np.int8)
    inner = QuantWeight(codes=jnp.asarray(codes), scales=jnp.full((1, 40), 0.01), bits=8, group=96)
    weight = RoundedInputWeight(matrix=inner, inputs=kind, input_group=96)
    program = jax.jit(functools.partial(matmul, matrix=weight))
    whole = np.asarray(program(jnp.asarray(X, dtype)))
    for rows in (1, 2, 7):
        np.testing.assert_array_equal(
            np.asarray(program(jnp.asarray(X[:rows], dtype))), whole[:rows]
        )
    plain = np.asarray(matmul(jnp.asarray(X, dtype), inner))
    assert 0 < np.abs(plain - whole).max() < 0.05 * np.abs(plain).max()
