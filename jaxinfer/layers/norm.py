"""DEV. Normalization as models call it: the op of `pallas_kernels`, under a name for profiles."""

import jax

from pallas_kernels.rms_norm import add_rms_norm as add_rms_norm_op
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


def add_rms_norm(
    x: jax.Array,
    parts: jax.Array,
    weight: jax.Array,
    addend_weight: jax.Array | None,
    eps: float,
    kernel: str = "auto",
) -> tuple[jax.Array, jax.Array]:
    """The residual stream with what a sublayer adds, and its norm.

    Args:
        x: [..., E].
        parts: [parts, ..., E] f32, added up in order.
        weight: [E] f32. addend_weight: [E] f32 of a norm on what is added; None without one.
        eps: added to the mean of squares.
        kernel: implementation of the op.

    Returns:
        [..., E] and [..., E], both of x's dtype.
    """
    with jax.named_scope("rms_norm"):
        options = {"eps": eps, "implementation": kernel}
        # The name was decided for the engine.
        return add_rms_norm_op(x, parts, weight, addend_weight, **options)  # type: ignore[arg-type]
