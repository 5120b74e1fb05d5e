"""The specification of `quant_matmul` in plain XLA: decode every element, then the usual product.

Decoding is element-wise and the product is the one of float matrices, so a row's bits do not depend
on how many rows are in a step.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.rounding import rounded
from pallas_kernels.row_matmul import row_matmul


def quant_matmul(
    x: jax.Array,
    codes: jax.Array,
    scales: jax.Array,
    zeros: jax.Array | None = None,
    offsets: jax.Array | None = None,
    *,
    group: int,
    out_group: int = 1,
) -> jax.Array:
    """x · Wᵀ, accumulated in float32; W is decoded as `dequantize` says and rounded to x's dtype.

    Args:
        x: [..., in] f32 or bf16.
        codes, scales, zeros, offsets, group, out_group: as for `dequantize`.

    Returns:
        [..., out] f32.

    Cost: 2·rows·in·out FLOPs; a kernel reads in·out codes and their scales once.
    """
    matrix = dequantize(
        codes, scales, zeros, offsets, columns=x.shape[-1], group=group, out_group=out_group
    )
    return row_matmul(x, matrix.astype(x.dtype))


def stacked_quant_matmul(
    x: jax.Array,
    codes: jax.Array,
    scales: jax.Array,
    counts: jax.Array,
    zeros: jax.Array | None = None,
    offsets: jax.Array | None = None,
    *,
    group: int,
    out_group: int = 1,
) -> jax.Array:
    """`quant_matmul` of each of X matrices with rows of its own.

    Args:
        x: [X, C, in]. codes, scales, zeros, offsets: as there, with an axis X before.
        counts: [X] i32 – rows of each that are wanted, the first ones. What comes out for the
            others is not defined.

    Returns:
        [X, C, out] f32.

    Cost: as there, X times; a kernel does not read a matrix of which no row is wanted.
    """
    one = functools.partial(quant_matmul, group=group, out_group=out_group)
    return jax.vmap(one)(x, codes, scales, zeros, offsets)


def dequantize(
    codes: jax.Array,
    scales: jax.Array,
    zeros: jax.Array | None = None,
    offsets: jax.Array | None = None,
    *,
    columns: int,
    group: int,
    out_group: int = 1,
) -> jax.Array:
    """The matrix that codes stand for, element by element, in float32.

    code · scale, or (code - zero) · scale, or (code - lowest) · scale + offset, where the lowest
    code is -8 of 4 bits and -128 of 8: an offset is what the lowest code stands for.

    Example: columns 6, group 4: columns 0-3 take row 0 of the scales, columns 4 and 5 row 1.

    Args:
        codes: [out, ceil(in/2)] u8 – two signed 4-bit codes a byte, the even column in the low
            half; or [out, in] i8; or [out, in] f8_e4m3fn.
        scales: [ceil(in/group), ceil(out/out_group)] f32, f16 or bf16.
        zeros: [ceil(in/group), out] i8 – the code that stands for 0.
        offsets: [ceil(in/group), out] f32, f16 or bf16; not together with zeros.
        columns: in.
        group: columns under one scale; the last group may be short.
        out_group: rows under one scale; above 1 without zeros and offsets.

    Returns:
        [out, in] f32.
    """
    shape = (codes.shape[0], columns)
    values = signed_codes(codes)[:, :columns]
    scale = _spread(scales, shape, group, out_group).astype(jnp.float32)
    if zeros is not None:
        values = values.astype(jnp.int32) - _spread(zeros, shape, group, 1).astype(jnp.int32)
    if offsets is None:
        return values.astype(jnp.float32) * scale
    lowest = -8 if codes.dtype == jnp.uint8 else -128
    values = values.astype(jnp.int32) - jnp.int32(lowest)
    offset = _spread(offsets, shape, group, 1).astype(jnp.float32)
    return rounded(values.astype(jnp.float32) * scale) + offset


def signed_codes(codes: jax.Array) -> jax.Array:
    """One code an element: bytes of two 4-bit codes are split, the others stay as they are.

    Example: [[0x21 0xF8]] u8 → [[1 2 -8 -1]] i8. Shifted as signed bytes, the upper bits are copies
    of the code's sign: 0xF8 << 4 = 0x80 = -128, >> 4 = -8.
    """
    if codes.dtype != jnp.uint8:
        return codes
    both = lax.bitcast_convert_type(codes, jnp.int8)
    four = jnp.int8(4)
    low = lax.shift_right_arithmetic(lax.shift_left(both, four), four)
    return jnp.stack([low, lax.shift_right_arithmetic(both, four)], axis=-1).reshape(
        codes.shape[0], -1
    )


def _spread(values: jax.Array, shape: tuple[int, int], group: int, out_group: int) -> jax.Array:
    """[groups, out groups] → [out, in], each value over its group of columns and rows."""
    wide = jnp.repeat(jnp.repeat(values.T, group, axis=1)[:, : shape[1]], out_group, axis=0)
    return wide[: shape[0]]
