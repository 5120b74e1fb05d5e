"""What pages are made of: floats, or 8-bit codes with scales; how rows become codes and back.

A code is written once and never changed, so a scale covers what is written at once: one token of
one head (int8), or is fixed beforehand (fp8). Rounding is element-wise work and a maximum: its bits
do not depend on how many rows are rounded together. Knows no table and no attention.

Where a CPU would widen a scatter or gather of small floats, and all pages with it, arrays hold
their bits as unsigned integers instead.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

LARGEST_INT8 = 127.0  # -128 is left out: codes are symmetric
LARGEST_FP8 = 448.0
_FLOATS = {"uint16": jnp.bfloat16, "uint8": jnp.float8_e4m3fn}  # by the integer that holds its bits


class TokenScaledPages(NamedTuple):
    """int8 codes with a scale for each token of each head: value = code · scale."""

    codes: jax.Array  # [P, K, S, D] i8
    scales: jax.Array  # [P, K, S] bf16, or u16 that holds its bits


class HeadScaledPages(NamedTuple):
    """fp8 codes (e4m3) with a fixed scale for each head: value = code · scale."""

    codes: jax.Array  # [P, K, S, D] f8, or u8 that holds its bits
    scales: jax.Array  # [K] f32


Pages = jax.Array | TokenScaledPages | HeadScaledPages


def code_array(pages: Pages) -> jax.Array:
    """The [P, K, S, D] array: its dtype says which of the three it is."""
    return pages.codes if isinstance(pages, TokenScaledPages | HeadScaledPages) else pages


def as_floats(array: jax.Array) -> jax.Array:
    """float32 of what an array of pages holds, scales not applied."""
    if str(array.dtype) in _FLOATS:
        array = lax.bitcast_convert_type(array, _FLOATS[str(array.dtype)])
    return array.astype(jnp.float32)


def as_stored(values: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Floats or codes as an array of pages of that dtype holds them: `as_floats` turned round."""
    if str(dtype) in _FLOATS:
        return lax.bitcast_convert_type(values.astype(_FLOATS[str(dtype)]), dtype)
    return values.astype(dtype)


def round_by_token(tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
    """int8 codes of each row and the scale that they are multiples of.

    The scale is the largest magnitude over 127, rounded to bfloat16 (which has float32's range)
    before the codes are made: then nothing but the code's own rounding is lost. Where a row holds
    NaN or infinity the scale is that, and everything that comes back is NaN.

    Args:
        tokens: [..., D] any float.

    Returns:
        [..., D] i8 from -127 to 127, and [...] bf16. |token - code · scale| <= scale / 2.
    """
    tokens = tokens.astype(jnp.float32)
    largest = jnp.max(jnp.abs(tokens), axis=-1)
    scales = (largest * jnp.float32(1 / LARGEST_INT8)).astype(jnp.bfloat16)
    steps = scales.astype(jnp.float32)
    inverse = jnp.where(steps > 0, jnp.float32(1) / steps, jnp.float32(0))
    limit = jnp.float32(LARGEST_INT8)
    codes = jnp.clip(jnp.round(tokens * inverse[..., None]), -limit, limit)
    # What has no code must not reach the conversion: there machines differ.
    codes = jnp.where(jnp.isfinite(codes), codes, jnp.float32(0))
    return codes.astype(jnp.int8), scales


def round_by_head(tokens: jax.Array, scales: jax.Array) -> jax.Array:
    """fp8 codes of rows under fixed scales; what lies past the largest code becomes that.

    NaN and infinity both become NaN: a step that went wrong must still be seen.

    Args:
        tokens: [..., K, D] any float.
        scales: [K] f32, positive.

    Returns:
        [..., K, D] f8.
    """
    inverse = (jnp.float32(1) / scales).reshape((1,) * (tokens.ndim - 2) + (-1, 1))
    limit = jnp.float32(LARGEST_FP8)
    scaled = tokens.astype(jnp.float32) * inverse
    held = jnp.where(jnp.isfinite(scaled), jnp.clip(scaled, -limit, limit), jnp.float32(jnp.nan))
    return held.astype(jnp.float8_e4m3fn)
