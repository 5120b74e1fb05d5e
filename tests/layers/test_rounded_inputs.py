"""Inputs rounded to 8 bits: against NumPy, zeros, and the same bits for any number of rows."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxinfer.layers.linear import matmul
from jaxinfer.layers.matmul_kernels import with_kernels
from jaxinfer.layers.rounded_inputs import input_codes, round_inputs
from jaxinfer.layers.weights import QuantWeight, RoundedInputWeight, Weight
from pallas_kernels.dispatch import HOPPER, Platform
from tests.support.tolerances import KERNELS

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


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_a_row_of_next_to_nothing_is_zero(kind: str) -> None:
    """Its step would overflow, and nothing times that is NaN."""
    row = jnp.asarray([[1e-37, 0.0, 5e-38, 0.0]], jnp.float32)
    assert not np.asarray(round_inputs(row, kind, 4)).any()
    broken = jnp.asarray([[1.0, jnp.nan, 0.0, 0.0]], jnp.float32)
    assert np.isnan(np.asarray(round_inputs(broken, kind, 4))).any()


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


@pytest.mark.parametrize("group", [96, 32])
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_codes_and_scales_are_what_is_rounded_to(kind: str, group: int) -> None:
    codes, scales = input_codes(jnp.asarray(X), kind, group)
    assert codes.dtype == {"int8": jnp.int8, "fp8": jnp.float8_e4m3fn}[kind]
    wide = np.repeat(np.asarray(scales), group, axis=1)
    found = np.asarray(codes, np.float32) * wide
    np.testing.assert_array_equal(found, np.asarray(round_inputs(jnp.asarray(X), kind, group)))


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_a_kernel_multiplies_codes_with_codes(kind: str) -> None:
    """The same numbers as rounding to floats, but for the order of additions."""
    random = np.random.default_rng(2)
    codes = random.integers(-127, 128, (64, 128)).astype(np.int8)
    if kind == "fp8":
        codes = random.normal(0, 100, (64, 128)).clip(-448, 448).astype(ml_dtypes.float8_e4m3fn)
    inner = QuantWeight(codes=jnp.asarray(codes), scales=jnp.full((1, 64), 0.01), bits=8, group=128)
    weight = Weight(RoundedInputWeight(matrix=inner, inputs=kind, input_group=128))
    x = jnp.asarray(random.normal(size=(3, 128)), jnp.float32)
    expected = np.asarray(matmul(x, weight.value))
    named = with_kernels({"one": weight}, "simulated", "bfloat16", Platform(kind="cpu"))["one"]
    assert named.value.kernel == "simulated"
    found = np.asarray(matmul(x, named.value))
    assert np.linalg.norm(found - expected) < KERNELS["float32"] * np.linalg.norm(expected)
    on_cpu = with_kernels({"one": weight}, "auto", "float32", Platform(kind="cpu"))["one"]
    assert on_cpu.value.kernel == "reference" and on_cpu.value.matrix.kernel == "reference"
    assert with_kernels({"one": weight}, "auto", "bfloat16", HOPPER)["one"].value.kernel == "mosaic"
