"""The specification of `rms_norm` in plain XLA."""

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.folded_sum import folded_sum
from pallas_kernels.rounding import rounded


def rms_norm(x: jax.Array, weight: jax.Array, *, eps: float) -> jax.Array:
    """x / sqrt(mean(x²) + eps) · weight, in float32, the mean over the last axis.

    Args:
        x: [..., E] f32 or bf16.
        weight: [E] f32 – the scale as it is applied (Gemma's "weight + 1" is added at load).
        eps: added to the mean of squares.

    Returns:
        [..., E] of x's dtype.

    Source: Zhang and Sennrich 2019, equation 4.
    Cost: 4·E FLOPs and 2·E values moved a row.
    """
    wide = x.astype(jnp.float32)
    mean_square = folded_sum(rounded(wide * wide)) / jnp.float32(x.shape[-1])
    scale = weight.astype(jnp.float32).reshape((1,) * (x.ndim - 1) + weight.shape)
    return (wide * lax.rsqrt(mean_square + jnp.float32(eps)) * scale).astype(x.dtype)


def add_rms_norm(
    x: jax.Array, addend: jax.Array, weight: jax.Array, *, eps: float
) -> tuple[jax.Array, jax.Array]:
    """The sum x + addend, and its norm: what stands between two sublayers.

    Args:
        x: [..., E] f32 or bf16 – the residual stream.
        addend: [..., E] of x's dtype – what a sublayer adds to it.
        weight: [E] f32.
        eps: added to the mean of squares.

    Returns:
        [..., E] the sum rounded to x's dtype, and [..., E] the norm of the rounded sum.

    Cost: 5·E FLOPs and 4·E values moved a row.
    """
    total = x + addend
    return total, rms_norm(total, weight, eps=eps)
