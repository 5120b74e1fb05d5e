"""`linear`: the product, the bias, dtypes, and the same bits for any number of rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.layers.linear import linear, matmul
from jaxinfer.layers.weights import BiasedWeight, LinearWeight, Weight

MATRIX = np.random.default_rng(0).normal(size=(40, 96)).astype(np.float32)
BIAS = np.random.default_rng(1).normal(size=40).astype(np.float32)
X = np.random.default_rng(2).normal(size=(64, 96)).astype(np.float32)

program = jax.jit(matmul)


@pytest.mark.parametrize("shape", [(96,), (1, 96), (3, 96), (2, 3, 96)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_equals_float64(shape: tuple[int, ...], has_bias: bool) -> None:
    x = X.reshape(-1)[: int(np.prod(shape))].reshape(shape)
    matrix = jnp.asarray(MATRIX)
    weight: LinearWeight = Weight(value=matrix)
    if has_bias:
        weight = BiasedWeight(value=matrix, bias=jnp.asarray(BIAS))
    found = np.asarray(linear(jnp.asarray(x), weight))
    exact = x.astype(np.float64) @ MATRIX.T.astype(np.float64) + (BIAS if has_bias else 0)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, exact, atol=2e-5)


def test_bfloat16_matrices_give_float32() -> None:
    """The input is rounded to the matrix's dtype, the sum is kept in float32."""
    matrix = jnp.asarray(MATRIX, jnp.bfloat16)
    found = program(X[:4], matrix)
    assert found.dtype == jnp.float32
    rounded = np.asarray(jnp.asarray(X[:4], jnp.bfloat16), np.float64)
    exact = rounded @ np.asarray(matrix, np.float64).T
    np.testing.assert_allclose(np.asarray(found), exact, atol=1e-4)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_row_s_bits_do_not_depend_on_the_number_of_rows(dtype: jnp.dtype) -> None:
    """Alone too: one row would take another path, so it is padded to two."""
    matrix = jnp.asarray(MATRIX, dtype)
    whole = np.asarray(program(X, matrix))
    for rows in (1, 2, 7, 33):
        np.testing.assert_array_equal(np.asarray(program(X[:rows], matrix)), whole[:rows])
