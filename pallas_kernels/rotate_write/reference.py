"""The specification of `rotate_write` in plain XLA."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.folded_sum import folded_sum
from pallas_kernels.rounding import rounded


class HeadNorms(NamedTuple):
    """Root-mean-square norms of each head, before it is rotated."""

    q_scale: jax.Array  # [D] f32
    k_scale: jax.Array  # [D] f32


def rotate_write(
    parts: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    cos: jax.Array,
    sin: jax.Array,
    pages: jax.Array,
    offsets: jax.Array,
    norms: HeadNorms | None = None,
    *,
    num_heads: int,
    eps: float = 0.0,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Takes queries, keys and values apart, norms and rotates them, writes keys and values.

    Args:
        parts: [parts, M, (H + 2·K)·D] f32 – their sum, in order, is all heads of M tokens.
        k_pages, v_pages: [P, K, S, D] bf16 or f32.
        cos, sin: [M, D/2] f32 – the rotation of pairs (i, i + D/2).
        pages, offsets: [M] i32 – where each token goes; only the null page may occur twice.
        norms: of queries and keys; None without them.
        num_heads: H. eps: of the norms, added to the mean of squares.

    Returns:
        [M, H, D] queries, and the pages with the tokens, all of the pages' dtype.

    Donates: pages, where the caller's program does.
    Cost: reads `parts`, writes M·(H + 2·K)·D values.
    """
    total = functools.reduce(jnp.add, list(parts))
    num_kv_heads, head_dim = k_pages.shape[1], k_pages.shape[3]
    heads = total.reshape(total.shape[0], num_heads + 2 * num_kv_heads, head_dim)
    q, k, v = jnp.split(heads, (num_heads, num_heads + num_kv_heads), axis=1)
    if norms is not None:
        q, k = _normed(q, norms.q_scale, eps), _normed(k, norms.k_scale, eps)
    q, k = (_rotated(one, cos, sin) for one in (q, k))
    return (
        q.astype(k_pages.dtype),
        k_pages.at[pages, :, offsets].set(k.astype(k_pages.dtype)),
        v_pages.at[pages, :, offsets].set(v.astype(v_pages.dtype)),
    )


def _normed(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    mean_square = folded_sum(rounded(x * x)) / jnp.float32(x.shape[-1])
    return x * lax.rsqrt(mean_square + jnp.float32(eps)) * scale[None, None, :]


def _rotated(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    left, right = jnp.split(x, 2, axis=-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    turned = rounded(left * cos) - rounded(right * sin), rounded(right * cos) + rounded(left * sin)
    return jnp.concatenate(turned, axis=-1)
