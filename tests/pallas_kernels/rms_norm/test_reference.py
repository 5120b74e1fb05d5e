"""The reference of `rms_norm` against float64, in bits at any width, and by name."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.rms_norm import rms_norm

EPS = 1e-6


def exact(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    return wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + EPS) * weight


compiled = jax.jit(functools.partial(rms_norm, eps=EPS))


@pytest.mark.parametrize("size", [1, 80, 576])
def test_equals_float64(size: int) -> None:
    random = np.random.default_rng(size)
    weight = random.normal(size=size).astype(np.float32)
    for scale in (0.0, 1e-3, 1.0, 1e3):
        x = (scale * random.normal(size=(2, 3, size))).astype(np.float32)
        found = np.asarray(compiled(x, weight))
        np.testing.assert_allclose(found, exact(x, weight), rtol=1e-5, atol=1e-7)


def test_bfloat16_is_normed_in_float32() -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 96)), jnp.bfloat16)
    weight = jnp.ones(96, jnp.float32)
    found = compiled(x, weight)
    assert found.dtype == jnp.bfloat16
    wide = compiled(x.astype(jnp.float32), weight).astype(jnp.bfloat16)
    np.testing.assert_array_equal(np.asarray(found, np.float32), np.asarray(wide, np.float32))


@pytest.mark.parametrize("size", [64, 576])
def test_a_row_s_bits_do_not_depend_on_the_number_of_rows(size: int) -> None:
    x = np.random.default_rng(size).normal(size=(64, size)).astype(np.float32)
    weight = np.random.default_rng(1).normal(size=size).astype(np.float32)
    whole = np.asarray(compiled(x, weight))
    for rows in (1, 7):
        np.testing.assert_array_equal(np.asarray(compiled(x[:rows], weight)), whole[:rows])


def test_the_implementation_may_be_named() -> None:
    x, weight = jnp.ones((2, 4)), jnp.ones(4)
    named = rms_norm(x, weight, eps=EPS, implementation="reference")
    np.testing.assert_array_equal(np.asarray(named), np.asarray(compiled(x, weight)))
    with pytest.raises(ValueError, match="rms_norm has no implementation 'x'; it has: auto, ref"):
        rms_norm(jnp.ones((2, 4)), jnp.ones(4), eps=EPS, implementation="x")  # type: ignore[arg-type]
