"""The kernel of `quant_matmul` on Mosaic GPU: how matrices stream through, and what multiplies.

A program is 64 outputs a warpgroup and one tile of rows. Codes are widened in registers, after the
copy to shared memory; or, where rows are of the matrix's own type, both go to the tensor cores from
shared memory as they are. Knows no format of a file and no defaults.
"""

import functools
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.mosaic_compat import (
    full,
    load,
    matmul_registers,
    matmul_transposed,
    simulation,
    store_transposed,
    tiled_smem,
)
from pallas_kernels.quant_matmul.tiles import BLOCK_OUT, QuantTiles

WGMMA = plgpu.Layout.WGMMA
LOWEST = {4: -8.0, 8: -128.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Static sizes of one call.

    block_in: columns of a step. segment: of them, those that are summed before they are scaled.
    bits: of a code. beside: what comes with codes and rows, a value a group and output or row, in
    this order: "scales"; "zeros" or "offsets", and then "sums" of the rows; "row scales".
    is_direct: rows and matrix are multiplied as they are. splits: programs along the columns.
    stack: matrices, each with rows of its own; 0 for one, whose arrays have no axis for it.
    """

    columns: int
    group: int
    block_in: int
    bits: int
    beside: tuple[Literal["scales", "zeros", "offsets", "sums", "row scales"], ...]
    is_direct: bool
    splits: int
    tiles: QuantTiles
    interpret: bool
    stack: int = 0

    @property
    def segment(self) -> int:
        return min(self.group, self.block_in)

    @property
    def num_segments(self) -> int:
        """Of one step."""
        return self.block_in // self.segment

    @property
    def outputs(self) -> int:
        return self.tiles.warpgroups * BLOCK_OUT

    @property
    def num_blocks(self) -> int:
        return self.columns // self.block_in

    @property
    def split_blocks(self) -> int:
        return -(-self.num_blocks // self.splits)


# A program may hold hundreds of such calls of a few shapes: each shape is traced and lowered once.
@functools.partial(jax.jit, static_argnums=(0, 1, 4))
def call_kernel(
    num_rows: int,
    outputs: int,
    arrays: list[jax.Array],
    counts: list[jax.Array],
    blocks: Blocks,
) -> jax.Array:
    """The partial products [splits, rows, out] f32, or [splits, X, rows, out] of a stack.

    Args:
        arrays: rows, matrix or codes, and those that `blocks.beside` names.
        counts: of a stack, [X] i32: rows of each that are wanted.
    """
    tiles, stages = blocks.tiles, blocks.tiles.stages
    splits = -(-blocks.num_blocks // blocks.split_blocks)
    segments, stack = blocks.num_segments, [blocks.stack] if blocks.stack else []
    x, matrix, *others = arrays
    inputs = [
        tiled_smem(
            stages, tiles.block_rows, blocks.block_in, dtype=x.dtype, tile_columns=blocks.segment
        ),
        tiled_smem(
            stages,
            blocks.outputs,
            blocks.block_in,
            dtype=matrix.dtype,
            tile_columns=blocks.segment if blocks.is_direct else blocks.block_in,
        ),
    ]
    for name, array in zip(blocks.beside, others, strict=True):
        width = tiles.block_rows if name in ("sums", "row scales") else blocks.outputs
        inputs.append(plgpu.SMEM((stages, segments, width), array.dtype))
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
        total = _add_step(total, [one.at[buffer] for one in smem], this, blocks)

        @pl.when(block + stages < last)
        def _refill() -> None:
            # Also with one warpgroup: one of its warps must not overtake what another still loads.
            plgpu.barrier_arrive(is_read.at[buffer])

            @pl.when(this == 0)
            def _fetch() -> None:
                plgpu.barrier_wait(is_read.at[buffer])
                fetch(block + stages)

        return total

    zero = full((BLOCK_OUT, blocks.tiles.block_rows), 0.0, WGMMA, blocks.interpret)
    total = lax.fori_loop(first, last, step, zero)
    store_transposed(out_smem.at[this], total, blocks.interpret)
    plgpu.commit_smem()
    out_rows = pl.ds(lax.axis_index("out") * blocks.outputs + this * BLOCK_OUT, BLOCK_OUT)
    rows = pl.ds(lax.axis_index("rows") * blocks.tiles.block_rows, blocks.tiles.block_rows)
    plgpu.copy_smem_to_gmem(out_smem.at[this], out_gmem.at[(split, *matrix, rows, out_rows)])
    plgpu.wait_smem_to_gmem(0)


def _places(gmem: Any, block: Any, matrix: tuple, blocks: Blocks) -> list[Any]:
    """What one step needs of each input.

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
    places = [gmem[0].at[(*matrix, rows, columns)], gmem[1].at[(*matrix, outputs, columns)]]
    spans = {"sums": (segments, rows), "row scales": (groups, rows)}
    for name, ref in zip(blocks.beside, gmem[2:], strict=True):
        places.append(ref.at[(*matrix, *spans.get(name, (groups, outputs)))])
    return places


def _add_step(total: jax.Array, smem: list[Any], this: Any, blocks: Blocks) -> jax.Array:
    """The total with one step of this warpgroup's outputs."""
    x_smem, codes_smem, *others = smem
    beside = dict(zip(blocks.beside, others, strict=True))
    mine = pl.ds(this * BLOCK_OUT, BLOCK_OUT)
    multiply = _multiply(codes_smem, mine, blocks)
    for number in range(blocks.num_segments):
        columns = pl.ds(number * blocks.segment, blocks.segment)
        product = multiply(number, x_smem.at[:, columns])
        if "scales" not in beside:
            total = total + product
            continue
        scale = _of_outputs(beside["scales"].at[number, mine], blocks)
        if "row scales" in beside:
            product = product * _of_rows(beside["row scales"].at[number], product, blocks)
        total = total + product * lax.broadcast_in_dim(scale, product.shape, [0])
        for name in ("zeros", "offsets"):
            if name in beside:
                addend = _of_outputs(beside[name].at[number, mine], blocks)
                shifts = lax.broadcast_in_dim(
                    _shift(name, addend, scale, blocks), product.shape, [0]
                )
                total = total + shifts * _of_rows(beside["sums"].at[number], product, blocks)
    return total


def _multiply(codes_smem: Any, mine: Any, blocks: Blocks) -> Any:
    """Products of one segment of a step: (its number, rows of x) → [64, rows] f32."""
    if blocks.is_direct:

        def direct(number: int, x_part: Any) -> jax.Array:
            part = codes_smem.at[mine, pl.ds(number * blocks.segment, blocks.segment)]
            return matmul_transposed(part, x_part, blocks.interpret).astype(jnp.float32)

        return direct
    codes = load(codes_smem.at[mine], WGMMA, blocks.interpret).astype(jnp.bfloat16)

    def widened(number: int, x_part: Any) -> jax.Array:
        start = number * blocks.segment
        part = codes
        if blocks.num_segments > 1:
            part = lax.slice(codes, (0, start), (BLOCK_OUT, start + blocks.segment))
        return matmul_registers(part, x_part, blocks.interpret)

    return widened


def _of_outputs(ref: Any, blocks: Blocks) -> jax.Array:
    """[64] f32, a value of each output."""
    return load(ref, WGMMA.reduce(1), blocks.interpret).astype(jnp.float32)


def _of_rows(ref: Any, product: jax.Array, blocks: Blocks) -> jax.Array:
    """[64, rows] f32, a value of each row of x."""
    values = load(ref, WGMMA.reduce(0), blocks.interpret)
    return lax.broadcast_in_dim(values, product.shape, [1])


def _shift(name: str, addend: jax.Array, scale: jax.Array, blocks: Blocks) -> jax.Array:
    """What every element of a group has beside code · scale."""
    if name == "zeros":
        return -(addend * scale)
    return addend - scale * jnp.float32(LOWEST[blocks.bits])
