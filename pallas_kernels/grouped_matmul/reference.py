"""The specification of `grouped_matmul` in plain XLA: one batched product of all rows."""

import jax
import jax.numpy as jnp
from jax import lax


def grouped_matmul(x: jax.Array, matrices: jax.Array, counts: jax.Array) -> jax.Array:
    """x · matrixᵀ for each group, accumulated in float32.

    Args:
        x: [X, C, in] – cast to the dtype of the matrices.
        matrices: [X, out, in] f32 or bf16.
        counts: [X] i32 – rows of a group that are wanted, the first ones. What comes out for the
            others is not defined, and may be NaN.

    Returns:
        [X, C, out] f32.

    Cost: 2·X·C·in·out FLOPs; a kernel leaves out rows that are not wanted, and does not read the
        matrix of a group without any.
    """
    return lax.dot_general(
        x.astype(matrices.dtype),
        matrices,
        (((2,), (2,)), ((0,), (0,))),
        precision=lax.Precision.HIGHEST if matrices.dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )
