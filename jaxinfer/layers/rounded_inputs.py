"""DEV. Inputs of a linear layer rounded to 8 bits, a scale a row or a group of its columns.

The numbers that an integer or FP8 product would see, as floats: the specification of what kernels
for such products may do. Knows no weights.
"""

import jax
import jax.numpy as jnp

_LARGEST = {"int8": 127.0, "fp8": 448.0}
_DTYPES = {"int8": jnp.int8, "fp8": jnp.float8_e4m3fn}


def round_inputs(x: jax.Array, kind: str, group: int) -> jax.Array:
    """x, each group of columns rounded to codes times its largest magnitude over the largest code.

    Args:
        x: [..., in] f32 or bf16.
        kind: "int8" or "fp8". group: columns under one scale, a divisor of in.

    Returns:
        [..., in] of x's dtype.
    """
    codes, scales = _rounded(x, kind, group)
    return (codes * scales).reshape(x.shape).astype(x.dtype)


def input_codes(x: jax.Array, kind: str, group: int) -> tuple[jax.Array, jax.Array]:
    """The codes and scales whose products `round_inputs` gives.

    Returns:
        [..., in] i8 or f8_e4m3fn, and [..., in/group] f32.
    """
    codes, scales = _rounded(x, kind, group)
    return codes.reshape(x.shape).astype(_DTYPES[kind]), scales[..., 0]


def _rounded(x: jax.Array, kind: str, group: int) -> tuple[jax.Array, jax.Array]:
    """Codes [..., groups, group] as float32, and their scales [..., groups, 1].

    The scale leaves no code on a tie: with 127.5 in place of 127 the largest value of every row
    would lie half-way between two. It is multiplied by, never divided by: compilers make a product
    of some divisions.
    """
    groups = x.astype(jnp.float32).reshape(*x.shape[:-1], -1, group)
    largest = jnp.max(jnp.abs(groups), axis=-1, keepdims=True)
    limit = jnp.float32(_LARGEST[kind])
    steps = limit / largest
    steps = jnp.where(jnp.isfinite(steps), steps, jnp.float32(0))  # a row of next to nothing is 0
    codes = jnp.clip(groups * steps, -limit, limit)
    if kind == "int8":
        codes = jnp.round(codes)
    else:
        codes = codes.astype(jnp.float8_e4m3fn).astype(jnp.float32)
    return codes, largest * jnp.float32(1 / _LARGEST[kind])
