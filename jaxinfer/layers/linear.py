"""DEV. `linear`: the one entry through which every weight matrix is applied."""

import jax
import jax.numpy as jnp
from jax import lax

from jaxinfer.layers.weights import BiasedWeight, LinearWeight

_MIN_ROWS = 2  # on a CPU a single row takes a slow path whose bits differ, too


def linear(x: jax.Array, weight: LinearWeight) -> jax.Array:
    """x · weightᵀ (+ bias), accumulated in float32.

    Args:
        x: [..., in] – cast to the matrix's dtype for the product.
        weight: a record of `layers/weights.py`.

    Returns:
        [..., out] f32; the caller decides what it is kept in.

    Cost: 2·rows·in·out FLOPs; reads the matrix once.
    """
    out = matmul(x, weight.value)
    if isinstance(weight, BiasedWeight):
        out = out + weight.bias.reshape((1,) * (out.ndim - 1) + weight.bias.shape)
    return out


def matmul(x: jax.Array, matrix: jax.Array) -> jax.Array:
    """x · matrixᵀ in float32.

    Args:
        x: [..., in].
        matrix: [out, in].

    Returns:
        [..., out] f32.
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
