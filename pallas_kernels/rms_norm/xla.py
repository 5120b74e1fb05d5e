"""`rms_norm` as XLA fuses it on a GPU: a plain mean, one kernel together with what stands around.

The reference sums by folding halves, which a GPU compiler turns into three kernels. The order of
additions here is the compiler's: the same in every run of one program, not across programs.
"""

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.rms_norm.reference import add_normed


def rms_norm(x: jax.Array, weight: jax.Array, *, eps: float) -> jax.Array:
    """See `reference.rms_norm`."""
    wide = x.astype(jnp.float32)
    mean_square = jnp.mean(wide * wide, axis=-1, keepdims=True)
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
    """See `reference.add_rms_norm`."""
    return add_normed(rms_norm, x, parts, weight, addend_weight, eps=eps)
