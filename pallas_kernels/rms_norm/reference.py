"""The specification of `rms_norm` in plain XLA."""

import functools
from collections.abc import Callable

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
    x: jax.Array,
    parts: jax.Array,
    weight: jax.Array,
    addend_weight: jax.Array | None = None,
    *,
    eps: float,
) -> tuple[jax.Array, jax.Array]:
    """What stands between two sublayers: one's output added, and the norm that the next one reads.

    Args:
        x: [..., E] f32 or bf16 – the residual stream.
        parts: [parts, ..., E] f32 – their sum, in order, is added to it.
        weight: [E] f32.
        addend_weight: [E] f32 – the sum of the parts is normed with it first; None: it is not.
        eps: added to the mean of squares.

    Returns:
        [..., E] the sum rounded to x's dtype, and [..., E] the norm of the rounded sum.

    Cost: (4 + parts)·E FLOPs and (3 + 2·parts)·E values moved a row.
    """
    return add_normed(rms_norm, x, parts, weight, addend_weight, eps=eps)


def add_normed(
    norm: Callable[..., jax.Array],
    x: jax.Array,
    parts: jax.Array,
    weight: jax.Array,
    addend_weight: jax.Array | None = None,
    *,
    eps: float,
) -> tuple[jax.Array, jax.Array]:
    """`add_rms_norm` with this norm."""
    addend = functools.reduce(jnp.add, list(parts))
    if addend_weight is not None:  # whose last product must not merge with the addition
        addend = rounded(norm(addend, addend_weight, eps=eps))
    total = x + addend.astype(x.dtype)
    return total, norm(total, weight, eps=eps)
