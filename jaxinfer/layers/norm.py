"""DEV. Normalization as models call it: the op of `pallas_kernels`, under a name for profiles."""

import jax

from pallas_kernels.rms_norm import rms_norm as rms_norm_op


def rms_norm(x: jax.Array, weight: jax.Array, eps: float, kernel: str = "auto") -> jax.Array:
    """x / sqrt(mean(x²) + eps) · weight.

    Args:
        x: [..., E].
        weight: [E] f32.
        eps: added to the mean of squares.
        kernel: implementation of the op.

    Returns:
        [..., E] of x's dtype.
    """
    with jax.named_scope("rms_norm"):
        return rms_norm_op(x, weight, eps=eps, implementation=kernel)  # type: ignore[arg-type]
