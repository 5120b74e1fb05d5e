"""The one matrix product of rows with a matrix `[out, in]`, in the form that keeps bits.

On a CPU a row's bits are the same for any number of rows of two or more. Knows no weight format.
"""

import jax
import jax.numpy as jnp
from jax import lax

_MIN_ROWS = 2  # on a CPU a single row takes a slow path whose bits differ, too


def row_matmul(x: jax.Array, matrix: jax.Array) -> jax.Array:
    """x · matrixᵀ, accumulated in float32.

    Args:
        x: [..., in] – cast to the matrix's dtype for the product.
        matrix: [out, in] f32 or bf16.

    Returns:
        [..., out] f32.

    Cost: 2·rows·in·out FLOPs; reads the matrix once.
    """
    rows = x.reshape(-1, x.shape[-1])
    num_rows = rows.shape[0]
    if num_rows < _MIN_ROWS:
        rows = jnp.pad(rows, ((0, _MIN_ROWS - num_rows), (0, 0)))
    out = lax.dot_general(
        rows.astype(matrix.dtype),
        matrix,
        (((1,), (1,)), ((), ())),
        precision=lax.Precision.HIGHEST if matrix.dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )
    return out[:num_rows].reshape(*x.shape[:-1], matrix.shape[0])
