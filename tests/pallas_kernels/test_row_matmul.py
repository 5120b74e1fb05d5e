"""`row_matmul`: the product against float64, and the same bits for any number of rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.row_matmul import row_matmul

MATRIX = np.random.default_rng(0).normal(size=(40, 96)).astype(np.float32)
X = np.random.default_rng(2).normal(size=(64, 96)).astype(np.float32)

program = jax.jit(row_matmul)


@pytest.mark.parametrize("shape", [(96,), (1, 96), (3, 96), (2, 3, 96)])
def test_equals_float64(shape: tuple[int, ...]) -> None:
    x = X.reshape(-1)[: int(np.prod(shape))].reshape(shape)
    found = np.asarray(program(jnp.asarray(x), jnp.asarray(MATRIX)))
    exact = x.astype(np.float64) @ MATRIX.T.astype(np.float64)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, exact, atol=2e-5)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_row_s_bits_do_not_depend_on_the_number_of_rows(dtype: jnp.dtype) -> None:
    matrix = jnp.asarray(MATRIX, dtype)
    whole = np.asarray(program(X, matrix))
    for rows in (1, 2, 7, 33):
        np.testing.assert_array_equal(np.asarray(program(X[:rows], matrix)), whole[:rows])
