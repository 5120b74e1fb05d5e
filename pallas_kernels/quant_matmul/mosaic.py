"""`quant_matmul` on Mosaic GPU: codes are widened in registers, after the copy to shared memory.

A program is 64 outputs a warpgroup and one tile of rows: out[m, o] = sum over groups of
scale[o] · (codes[o] · x[m]). Codes are exact in bfloat16, so all rounding is that of float32 sums;
zero points and offsets multiply the sums of x over each group, which XLA makes beforehand.
"""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.dispatch import Dtypes, Platform, Shapes, refuse, why_not_hopper
from pallas_kernels.folded_sum import folded_sum
from pallas_kernels.mosaic_compat import full, simulation, store_transposed, tiled_smem
from pallas_kernels.quant_matmul.mosaic_step import Blocks, add_step
from pallas_kernels.quant_matmul.tiles import (
    BLOCK_IN,
    BLOCK_OUT,
    MIN_ADDEND_ROWS,
    MIN_GROUP,
    QuantTiles,
    num_splits,
    quant_tiles,
)

LEAST_COPY_BYTES = 128  # to shared memory
_CODE_DTYPES = (jnp.uint8, jnp.int8)


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


def quant_matmul(
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
    """See `reference.quant_matmul`; x is bfloat16, and nothing is rounded to it but x itself.

    Args:
        tiles: sizes; None for the defaults of that many rows.
        interpret: simulate on the CPU.

    Raises:
        ValueError: shapes or dtypes that it does not take.
    """
    shapes, dtypes = {"x": x.shape, "codes": codes.shape}, {"x": x.dtype, "codes": codes.dtype}
    refuse("quant_matmul", "mosaic", _why_not_arrays(shapes, dtypes, group))
    rows = x.reshape(-1, x.shape[-1])
    arrays, addends = (codes, scales, zeros, offsets), (zeros, offsets)
    blocks = _blocks_of(rows.shape, codes, addends, group, tiles, interpret)
    out = _product(rows, arrays, out_group, [], blocks)
    return out.reshape(*x.shape[:-1], codes.shape[0])


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
    arrays, addends = (codes, scales, zeros, offsets), (zeros, offsets)
    blocks = _blocks_of(x.shape, codes, addends, group, tiles, interpret)
    return _product(x, arrays, out_group, [counts], blocks)


def _blocks_of(
    shape: tuple[int, ...],
    codes: jax.Array,
    addends: tuple[jax.Array | None, jax.Array | None],
    group: int,
    tiles: QuantTiles | None,
    interpret: bool,
) -> Blocks:
    """The sizes of a call with rows of that shape."""
    (*stack, num_rows, columns), outputs = shape, codes.shape[-2]
    zeros, offsets = addends
    has_addend = zeros is not None or offsets is not None
    if tiles is None:
        tiles = _default_tiles(num_rows, outputs, group, has_addend, interpret)
    _check_tiles(tiles, outputs, has_addend)
    every = outputs * (stack[0] if stack else 1)
    return Blocks(
        columns=columns,
        group=min(group, columns),
        block_in=_block_in(columns, group),
        bits=4 if codes.dtype == jnp.uint8 else 8,
        addend="zeros" if zeros is not None else "none" if offsets is None else "offsets",
        splits=num_splits(columns, every, num_rows, tiles),
        tiles=tiles,
        interpret=interpret,
        stack=stack[0] if stack else 0,
    )


def _product(
    rows: jax.Array,
    arrays: tuple[Any, ...],
    out_group: int,
    counts: list[jax.Array],
    blocks: Blocks,
) -> jax.Array:
    """[..., rows, out]. arrays: codes, scales, zeros and offsets. counts: one array for a stack."""
    codes, scales, zeros, offsets = arrays
    num_rows, outputs = rows.shape[-2], codes.shape[-2]
    missing = -num_rows % blocks.tiles.block_rows
    padded = jnp.pad(rows, [(0, 0)] * (rows.ndim - 2) + [(0, missing), (0, 0)])
    inputs = [padded, _as_codes(codes, blocks), _scale_an_output(scales, out_group, outputs)]
    if blocks.addend != "none":
        addend: Any = zeros if offsets is None else offsets
        inputs += [_as_copied(addend, blocks), _segment_sums(padded, blocks)]
    parts = _call(padded.shape[-2], outputs, inputs, counts, blocks)
    out = functools.reduce(jnp.add, list(parts))  # in order
    return out[..., :num_rows, :]


def _scale_an_output(scales: jax.Array, out_group: int, outputs: int) -> jax.Array:
    """Few, since a block of scaled columns is long."""
    return scales if out_group == 1 else jnp.repeat(scales, out_group, axis=-1)[..., :outputs]


def _as_copied(addend: jax.Array, blocks: Blocks) -> jax.Array:
    """Zeros or offsets, wide enough for a copy to shared memory."""
    if addend.dtype == jnp.int8 and blocks.outputs * blocks.num_segments < LEAST_COPY_BYTES:
        return addend.astype(jnp.bfloat16)  # exact
    return addend


def _default_tiles(
    num_rows: int, outputs: int, group: int, has_addend: bool, interpret: bool
) -> QuantTiles:
    """The defaults; one warpgroup where two do not fit, and in the simulator.

    It runs several warpgroups as programs inside of the program, for which the threads of a small
    CPU do not always suffice.
    """
    tiles = quant_tiles(num_rows, group=group, has_addend=has_addend)
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


# A program may hold hundreds of such calls of a few shapes: each shape is traced and lowered once.
@functools.partial(jax.jit, static_argnums=(0, 1, 4))
def _call(
    num_rows: int,
    outputs: int,
    arrays: list[jax.Array],
    counts: list[jax.Array],
    blocks: Blocks,
) -> jax.Array:
    """The kernel: [splits, rows, out] f32, or [splits, X, rows, out] of a stack."""
    tiles, stages = blocks.tiles, blocks.tiles.stages
    code_dtype = jnp.int4 if blocks.bits == 4 else jnp.int8
    splits = -(-blocks.num_blocks // blocks.split_blocks)
    segments, stack = blocks.num_segments, [blocks.stack] if blocks.stack else []
    inputs = [
        tiled_smem(stages, tiles.block_rows, blocks.block_in, tile_columns=blocks.segment),
        tiled_smem(stages, blocks.outputs, blocks.block_in, dtype=code_dtype),
        plgpu.SMEM((stages, segments, blocks.outputs), arrays[2].dtype),
    ]
    if blocks.addend != "none":
        inputs += [
            plgpu.SMEM((stages, segments, blocks.outputs), arrays[3].dtype),
            plgpu.SMEM((stages, segments, tiles.block_rows), jnp.float32),
        ]
    result = tiled_smem(tiles.warpgroups, tiles.block_rows, BLOCK_OUT, dtype=jnp.float32)
    barriers = [
        plgpu.Barrier(num_arrivals=len(inputs), num_barriers=stages),
        plgpu.Barrier(num_arrivals=tiles.warpgroups, num_barriers=stages),
    ]
    return plgpu.kernel(
        functools.partial(_kernel, num_inputs=len(inputs), blocks=blocks),
        out_type=jax.ShapeDtypeStruct((splits, *stack, num_rows, outputs), jnp.float32),
        grid=(outputs // blocks.outputs, splits, num_rows // tiles.block_rows, *stack),
        grid_names=("out", "split", "rows", *(["matrix"] if stack else [])),
        num_threads=tiles.warpgroups,
        thread_name="warpgroup",
        scratch_types=[inputs, result, barriers],
        compiler_params=plgpu.CompilerParams(reduction_scratch_bytes=0),
        kernel_name="quant_matmul",
        interpret=simulation(blocks.interpret),
    )(*arrays, *counts)


def _kernel(*refs: Any, num_inputs: int, blocks: Blocks) -> None:
    if not blocks.stack:
        _tile_kernel(refs[:num_inputs], refs[num_inputs:], (), blocks)
        return
    matrix, first_row = lax.axis_index("matrix"), lax.axis_index("rows") * blocks.tiles.block_rows
    counts_gmem, others = refs[num_inputs], refs[num_inputs + 1 :]

    @pl.when(first_row < counts_gmem[matrix])
    def _compute() -> None:
        _tile_kernel(refs[:num_inputs], others, (matrix,), blocks)


def _tile_kernel(gmem: Any, others: Any, matrix: tuple, blocks: Blocks) -> None:
    """One tile of rows with the outputs of this program. matrix: which of a stack."""
    out_gmem, smem, out_smem, (ready, is_read) = others
    this, stages = lax.axis_index("warpgroup"), blocks.tiles.stages
    split = lax.axis_index("split")
    first = split * blocks.split_blocks
    last = jnp.minimum(first + blocks.split_blocks, blocks.num_blocks)

    def fetch(block: Any) -> None:
        buffer = lax.rem(block - first, jnp.int32(stages))
        for source, target in zip(_places(gmem, block, matrix, blocks), smem, strict=True):
            plgpu.copy_gmem_to_smem(source, target.at[buffer], ready.at[buffer])

    @pl.when(this == 0)
    def _start() -> None:
        for ahead in range(stages):
            pl.when(first + ahead < last)(functools.partial(fetch, first + ahead))

    def step(block: Any, total: jax.Array) -> jax.Array:
        buffer = lax.rem(block - first, jnp.int32(stages))
        plgpu.barrier_wait(ready.at[buffer])
        total = add_step(total, [one.at[buffer] for one in smem], this, blocks)

        @pl.when(block + stages < last)
        def _refill() -> None:
            # Also with one warpgroup: one of its warps must not overtake what another still loads.
            plgpu.barrier_arrive(is_read.at[buffer])

            @pl.when(this == 0)
            def _fetch() -> None:
                plgpu.barrier_wait(is_read.at[buffer])
                fetch(block + stages)

        return total

    zero = full((BLOCK_OUT, blocks.tiles.block_rows), 0.0, plgpu.Layout.WGMMA, blocks.interpret)
    total = lax.fori_loop(first, last, step, zero)
    store_transposed(out_smem.at[this], total, blocks.interpret)
    plgpu.commit_smem()
    out_rows = pl.ds(lax.axis_index("out") * blocks.outputs + this * BLOCK_OUT, BLOCK_OUT)
    rows = pl.ds(lax.axis_index("rows") * blocks.tiles.block_rows, blocks.tiles.block_rows)
    plgpu.copy_smem_to_gmem(out_smem.at[this], out_gmem.at[(split, *matrix, rows, out_rows)])
    plgpu.wait_smem_to_gmem(0)


def _places(gmem: Any, block: Any, matrix: tuple, blocks: Blocks) -> list[Any]:
    """What one step needs of each input: x, codes, scales, then addends and sums of x.

    Example: steps of 128. Groups of 32: step 2 takes rows 8 to 11 of the scales; groups of 256:
    row 1.
    """
    columns = pl.ds(block * blocks.block_in, blocks.block_in)
    outputs = pl.ds(lax.axis_index("out") * blocks.outputs, blocks.outputs)
    rows = pl.ds(lax.axis_index("rows") * blocks.tiles.block_rows, blocks.tiles.block_rows)
    count = blocks.num_segments
    segments = pl.ds(block * count, count)
    groups = segments
    if blocks.group > blocks.block_in:
        groups = pl.ds(lax.div(block * blocks.block_in, jnp.int32(blocks.group)), 1)
    places = [
        gmem[0].at[(*matrix, rows, columns)],
        gmem[1].at[(*matrix, outputs, columns)],
        gmem[2].at[(*matrix, groups, outputs)],
    ]
    if blocks.addend != "none":
        places.append(gmem[3].at[(*matrix, groups, outputs)])
        places.append(gmem[4].at[(*matrix, segments, rows)])
    return places
