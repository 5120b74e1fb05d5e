"""`quant_matmul` on Mosaic GPU: what it takes, and how arrays are laid out for its kernel.

out[m, o] = sum over groups of scale[o] · (codes[o] · x[m]). Codes are exact in bfloat16, so all
rounding is that of float32 sums; zero points and offsets multiply the sums of x over each group,
which XLA makes beforehand. Plain bfloat16 matrices stream through the same kernel.
"""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.dispatch import Dtypes, Platform, Shapes, refuse, why_not_hopper
from pallas_kernels.folded_sum import folded_sum
from pallas_kernels.quant_matmul.mosaic_kernel import Blocks, call_kernel
from pallas_kernels.quant_matmul.tiles import (
    BLOCK_IN,
    BLOCK_OUT,
    MIN_ADDEND_ROWS,
    MIN_GROUP,
    PLAIN_BLOCK_IN,
    QuantTiles,
    coded_tiles,
    num_splits,
    plain_tiles,
    quant_tiles,
)

LEAST_COPY_BYTES = 128  # to shared memory
_CODE_DTYPES = (jnp.uint8, jnp.int8)
_DIRECT_DTYPES = (jnp.int8, jnp.float8_e4m3fn)


def why_not(shapes: Shapes, dtypes: Dtypes, platform: Platform, *, group: int) -> str | None:
    """Why this implementation cannot serve a call, or None. Names: x, codes."""
    return why_not_hopper(platform) or _why_not_arrays(shapes, dtypes, group)


def _why_not_arrays(shapes: Shapes, dtypes: Dtypes, group: int) -> str | None:
    columns, outputs = shapes["x"][-1], shapes["codes"][0]
    if jnp.dtype(dtypes["x"]) != jnp.bfloat16:
        return f"x is {jnp.dtype(dtypes['x'])}; it takes bfloat16"
    if jnp.dtype(dtypes["codes"]) not in _CODE_DTYPES:
        return f"codes are {jnp.dtype(dtypes['codes'])}; it takes int8 and packed 4-bit ones"
    if outputs % BLOCK_OUT:
        return f"the matrix has {outputs} outputs; it takes multiples of {BLOCK_OUT}"
    if not _block_in(columns, group):
        return (
            f"the matrix has {columns} columns in groups of {group}; it takes multiples of "
            f"{BLOCK_IN[-1]} in groups of {MIN_GROUP}, 32, 64 or multiples of 64 or 128"
        )
    return None


def _block_in(columns: int, group: int) -> int:
    """Columns of a step, 0 where there is none that fits: a step is whole groups, or part of one.

    Example: groups of 32 → steps of 128; 192 columns in one group → steps of 64.
    """
    for block in BLOCK_IN:
        divides = group % block == 0 or (block % group == 0 and group >= MIN_GROUP)
        if columns % block == 0 and (divides or group >= columns):
            return block
    return 0


def quant_matmul(*arrays: Any, **options: Any) -> jax.Array:
    """See `reference.quant_matmul`; otherwise as `quant_matmul_parts`."""
    return functools.reduce(jnp.add, list(quant_matmul_parts(*arrays, **options)))  # in order


def quant_matmul_parts(
    x: jax.Array,
    codes: jax.Array,
    scales: jax.Array,
    zeros: jax.Array | None = None,
    offsets: jax.Array | None = None,
    *,
    group: int,
    out_group: int = 1,
    tiles: QuantTiles | None = None,
    interpret: bool = False,
) -> jax.Array:
    """[splits, ..., out] f32, whose sum in order is the product. See `reference.quant_matmul`; x is
    bfloat16, and nothing is rounded to it but x itself.

    Args:
        tiles: sizes; None for the defaults of that many rows.
        interpret: simulate on the CPU.

    Raises:
        ValueError: shapes or dtypes that it does not take.
    """
    shapes, dtypes = {"x": x.shape, "codes": codes.shape}, {"x": x.dtype, "codes": codes.dtype}
    refuse("quant_matmul", "mosaic", _why_not_arrays(shapes, dtypes, group))
    rows, arrays = x.reshape(-1, x.shape[-1]), (codes, scales, zeros, offsets)
    parts = _product(rows, arrays, (group, out_group), [], tiles, interpret)
    return parts.reshape(-1, *x.shape[:-1], codes.shape[0])


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
    tiles: QuantTiles | None = None,
    interpret: bool = False,
) -> jax.Array:
    """See `reference.stacked_quant_matmul`; otherwise as `quant_matmul`.

    A program whose rows nobody wants ends at once and reads nothing.
    """
    shapes = {"x": x.shape[1:], "codes": codes.shape[1:]}
    dtypes = {"x": x.dtype, "codes": codes.dtype}
    refuse("quant_matmul", "mosaic", _why_not_arrays(shapes, dtypes, group))
    arrays = (codes, scales, zeros, offsets)
    parts = _product(x, arrays, (group, out_group), [counts], tiles, interpret)
    return functools.reduce(jnp.add, list(parts))  # in order


def _product(
    rows: jax.Array,
    arrays: tuple[Any, ...],
    groups: tuple[int, int],
    counts: list[jax.Array],
    tiles: QuantTiles | None,
    interpret: bool,
) -> jax.Array:
    """[splits, ..., rows, out]. arrays: codes, scales, zeros and offsets. groups: columns and rows
    under one scale. counts: one array for a stack."""
    codes, scales, zeros, offsets = arrays
    num_rows, outputs, (group, out_group) = rows.shape[-2], codes.shape[-2], groups
    addend: Any = zeros if offsets is None else offsets
    names = () if addend is None else ("offsets" if zeros is None else "zeros", "sums")
    if tiles is None:
        tiles = quant_tiles(num_rows, group=group, has_addend=bool(names))
        tiles = _fitting_tiles(tiles, outputs, interpret)
    _check_tiles(tiles, outputs, bool(names))
    columns, stack = rows.shape[-1], rows.shape[0] if rows.ndim == 3 else 0
    blocks = Blocks(
        columns=columns,
        group=min(group, columns),
        block_in=_block_in(columns, group),
        bits=4 if codes.dtype == jnp.uint8 else 8,
        beside=("scales", *names),
        is_direct=False,
        splits=num_splits(columns, outputs * (stack or 1), num_rows, tiles),
        tiles=tiles,
        interpret=interpret,
        stack=stack,
    )
    padded = _padded(rows, tiles)
    inputs = [padded, _as_codes(codes, blocks), _scale_an_output(scales, out_group, outputs)]
    if names:
        inputs += [_as_copied(addend, blocks), _segment_sums(padded, blocks)]
    return call_kernel(padded.shape[-2], outputs, inputs, counts, blocks)[..., :num_rows, :]


def why_not_coded(
    shapes: Shapes, dtypes: Dtypes, platform: Platform, *, group: int, out_group: int
) -> str | None:
    """Why `coded_matmul_parts` cannot serve a call, or None. Names: x, codes."""
    if reason := why_not_hopper(platform):
        return reason
    columns, outputs = shapes["x"][-1], shapes["codes"][0]
    if jnp.dtype(dtypes["codes"]) not in _DIRECT_DTYPES:
        return f"codes are {jnp.dtype(dtypes['codes'])}; it takes int8 and float8_e4m3fn"
    if outputs % BLOCK_OUT:
        return f"the matrix has {outputs} outputs; it takes multiples of {BLOCK_OUT}"
    if columns % BLOCK_IN[0] or (group < columns and group % BLOCK_IN[0]):
        return f"{columns} columns in groups of {group}; it takes multiples of {BLOCK_IN[0]}"
    return None


def coded_matmul_parts(
    x: jax.Array,
    x_scales: jax.Array,
    codes: jax.Array,
    scales: jax.Array,
    *,
    group: int,
    out_group: int = 1,
    tiles: QuantTiles | None = None,
    interpret: bool = False,
) -> jax.Array:
    """[splits, ..., out] f32, whose sum in order is `reference.coded_matmul`.

    Codes are multiplied as they are: int8 exactly, fp8 with float32 sums.

    Args:
        tiles, interpret: as for `quant_matmul_parts`.
    """
    columns, outputs = x.shape[-1], codes.shape[0]
    rows = x.reshape(-1, columns)
    if tiles is None:
        tiles = _fitting_tiles(coded_tiles(rows.shape[0]), outputs, interpret)
    _check_tiles(tiles, outputs, True)
    blocks = Blocks(
        columns=columns,
        group=min(group, columns),
        block_in=BLOCK_IN[0],
        bits=8,
        beside=("scales", "row scales"),
        is_direct=True,
        splits=num_splits(columns, outputs, rows.shape[0], tiles),
        tiles=tiles,
        interpret=interpret,
    )
    padded = _padded(rows, tiles)
    of_rows = _padded(x_scales.reshape(rows.shape[0], -1), tiles).T
    arrays = [padded, codes, _scale_an_output(scales, out_group, outputs), of_rows]
    parts = call_kernel(padded.shape[0], outputs, arrays, [], blocks)
    return parts[:, : rows.shape[0]].reshape(-1, *x.shape[:-1], outputs)


def why_not_plain(shapes: Shapes, dtypes: Dtypes, platform: Platform) -> str | None:
    """Why `plain_matmul_parts` cannot serve a call, or None. Names: x, matrix."""
    if reason := why_not_hopper(platform):
        return reason
    outputs, columns = shapes["matrix"]
    for name in ("x", "matrix"):
        if jnp.dtype(dtypes[name]) != jnp.bfloat16:
            return f"{name} is {jnp.dtype(dtypes[name])}; it takes bfloat16"
    if outputs % BLOCK_OUT or columns % PLAIN_BLOCK_IN:
        return f"the matrix is {outputs} by {columns}; it takes multiples of {BLOCK_OUT}"
    return None


def plain_matmul_parts(
    x: jax.Array,
    matrix: jax.Array,
    *,
    tiles: QuantTiles | None = None,
    interpret: bool = False,
) -> jax.Array:
    """[splits, ..., out] f32, whose sum in order is x · matrixᵀ.

    Args:
        x: [..., in] bf16. matrix: [out, in] bf16.
        tiles, interpret: as for `quant_matmul_parts`.

    Cost: 2·rows·in·out FLOPs; reads the matrix once for every tile of rows.
    """
    outputs, columns = matrix.shape
    rows = x.reshape(-1, columns)
    if tiles is None:
        tiles = _fitting_tiles(plain_tiles(rows.shape[0]), outputs, interpret)
    _check_tiles(tiles, outputs, False)
    blocks = Blocks(
        columns=columns,
        group=columns,
        block_in=PLAIN_BLOCK_IN,
        bits=16,
        beside=(),
        is_direct=True,
        splits=num_splits(columns, outputs, rows.shape[0], tiles),
        tiles=tiles,
        interpret=interpret,
    )
    padded = _padded(rows, tiles)
    parts = call_kernel(padded.shape[0], outputs, [padded, matrix], [], blocks)
    return parts[:, : rows.shape[0]].reshape(-1, *x.shape[:-1], outputs)


def _padded(rows: jax.Array, tiles: QuantTiles) -> jax.Array:
    missing = -rows.shape[-2] % tiles.block_rows
    return jnp.pad(rows, [(0, 0)] * (rows.ndim - 2) + [(0, missing), (0, 0)])


def _scale_an_output(scales: jax.Array, out_group: int, outputs: int) -> jax.Array:
    """Few, since a block of scaled columns is long."""
    return scales if out_group == 1 else jnp.repeat(scales, out_group, axis=-1)[..., :outputs]


def _as_copied(addend: Any, blocks: Blocks) -> jax.Array:
    """Zeros or offsets, wide enough for a copy to shared memory."""
    if addend.dtype == jnp.int8 and blocks.outputs * blocks.num_segments < LEAST_COPY_BYTES:
        return addend.astype(jnp.bfloat16)  # exact
    return addend


def _fitting_tiles(tiles: QuantTiles, outputs: int, interpret: bool) -> QuantTiles:
    """One warpgroup where two do not fit, and in the simulator.

    It runs several warpgroups as programs inside of the program, for which the threads of a small
    CPU do not always suffice.
    """
    is_single = interpret or outputs % (tiles.warpgroups * BLOCK_OUT) > 0
    return replace(tiles, warpgroups=1) if is_single else tiles


def _check_tiles(tiles: QuantTiles, outputs: int, has_addend: bool) -> None:
    if has_addend and tiles.block_rows < MIN_ADDEND_ROWS:
        raise ValueError(
            f"tiles={tiles}: block_rows must be at least {MIN_ADDEND_ROWS} with zeros or offsets"
        )
    if outputs % (tiles.warpgroups * BLOCK_OUT):
        raise ValueError(f"tiles={tiles}: {outputs} outputs are no multiple of 128; take one")


def _as_codes(codes: jax.Array, blocks: Blocks) -> jax.Array:
    """[out, in] of signed integers; two 4-bit codes a byte are what the GPU calls int4."""
    if blocks.bits == 8:
        return codes
    return lax.bitcast_convert_type(codes, jnp.int4).reshape(*codes.shape[:-1], -1)


def _segment_sums(rows: jax.Array, blocks: Blocks) -> jax.Array:
    """[..., segments, rows] f32: x summed over the columns of each segment."""
    split = rows.astype(jnp.float32).reshape(*rows.shape[:-1], -1, blocks.segment)
    return folded_sum(split)[..., 0].swapaxes(-1, -2)
