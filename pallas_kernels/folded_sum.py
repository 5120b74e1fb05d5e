"""A sum whose bits do not depend on how many rows are summed beside it.

XLA vectorizes a reduction differently for different row counts, which changes the order of the
additions. Folding halves is element-wise work, and element-wise work keeps its bits.
"""

import jax
import jax.numpy as jnp


def folded_sum(values: jax.Array) -> jax.Array:
    """The sum over the last axis, kept as an axis of one.

    Example: [a b c] is padded to [a b c 0], folds to [a+c b+0], then to [(a+c)+(b+0)].

    Args:
        values: [..., n] any float.

    Returns:
        [..., 1] of the same dtype.
    """
    size = values.shape[-1]
    width = 1 << max(size - 1, 0).bit_length()
    if width != size:
        padding = [(0, 0)] * (values.ndim - 1) + [(0, width - size)]
        values = jnp.pad(values, padding)
    while width > 1:
        # Three folds in one pass over memory: half the time of one by one on a CPU, the same bits.
        pieces = min(width, 8)
        width //= pieces
        values = _fold([values[..., i * width : (i + 1) * width] for i in range(pieces)])
    return values


def _fold(pieces: list[jax.Array]) -> jax.Array:
    while len(pieces) > 1:
        half = len(pieces) // 2
        pieces = [low + high for low, high in zip(pieces[:half], pieces[half:], strict=True)]
    return pieces[0]
