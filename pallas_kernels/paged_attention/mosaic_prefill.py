"""Prefill attention on Mosaic GPU: many query tokens a row, bound by arithmetic.

A tile is 64 tokens of one query head. In a program two warpgroups compute and a third only copies
keys and values ahead of them. The two take turns: while one multiplies, the other has its softmax.
They have a tile each or, where the registers do not hold a whole output (heads of 256), half the
output's columns each of the same tile.

Source: FlashAttention-3 (Shah et al. 2024), section 3.1, over pages.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.mosaic_compat import iota, simulation, tiled_smem
from pallas_kernels.paged_attention.mosaic_blocks import (
    WGMMA,
    BlockShape,
    add_block,
    block_range,
    block_scores,
    empty_softmax,
    erase_unseen,
    fetch_block,
    last_page_of,
    masked_scores,
    normalized,
)
from pallas_kernels.paged_attention.tiles import BLOCK_ROWS, PrefillTiles

COMPUTE_GROUPS = 2
# Registers a thread; (2 · 232 + 40) · 128 is what a multiprocessor has.
COMPUTE_REGISTERS = 232
COPY_REGISTERS = 40


def prefill_attention(
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    table: jax.Array,
    starts: jax.Array,
    lengths: jax.Array,
    *,
    shape: BlockShape,
    tiles: PrefillTiles,
) -> jax.Array:
    """See `reference.paged_attention`; query tokens are padded to a multiple of 64."""
    num_rows, num_queries, num_heads, head_dim = q.shape
    num_kv_heads = k_pages.shape[1]
    padded = jnp.pad(q, ((0, 0), (0, -num_queries % BLOCK_ROWS), (0, 0), (0, 0)))
    group = num_heads // num_kv_heads
    num_tiles = padded.shape[1] // BLOCK_ROWS * group
    tiles_at_once = COMPUTE_GROUPS * shape.columns // head_dim
    pipeline = tiled_smem(tiles.stages, tiles.block_keys, head_dim)
    ready = plgpu.Barrier(num_arrivals=shape.copies, num_barriers=tiles.stages)
    is_read = plgpu.Barrier(num_arrivals=COMPUTE_GROUPS, num_barriers=tiles.stages)
    run = plgpu.kernel(
        functools.partial(_prefill_kernel, group=group, num_tiles=num_tiles, shape=shape),
        out_type=jax.ShapeDtypeStruct(padded.shape, jnp.bfloat16),
        grid=(num_kv_heads, -(-num_tiles // tiles_at_once), num_rows),
        grid_names=("head", "tiles", "row"),
        num_threads=COMPUTE_GROUPS + 1,
        thread_name="warpgroup",
        scratch_types=[
            [tiled_smem(tiles_at_once, BLOCK_ROWS, head_dim), pipeline, pipeline],
            tiled_smem(COMPUTE_GROUPS, BLOCK_ROWS, shape.columns),
            [plgpu.Barrier(num_barriers=tiles_at_once), ready, ready],
            [is_read, is_read, plgpu.Barrier(num_arrivals=COMPUTE_GROUPS)],
        ],
        compiler_params=plgpu.CompilerParams(approx_math=True, reduction_scratch_bytes=0),
        kernel_name="prefill_attention",
        interpret=simulation(shape.interpret),
    )
    return run(padded, k_pages, v_pages, table, starts, lengths)[:, :num_queries]


def _tile_of(number: Any, group: int, num_tiles: int) -> tuple[Any, Any]:
    """First query token and query head (within its kv head) of a tile; heads come first.

    Example: 3 query heads, 128 tokens → tiles 0 1 2 are tokens 0… of heads 0 1 2, tiles 3 4 5
    tokens 64… of them. Past the last tile the last is done twice.
    """
    number = jnp.minimum(number, num_tiles - 1)
    first = lax.div(number, jnp.int32(group)) * BLOCK_ROWS
    return first, lax.rem(number, jnp.int32(group))


def _prefill_kernel(
    q_gmem: Any,
    k_gmem: Any,
    v_gmem: Any,
    table_gmem: Any,
    starts_gmem: Any,
    lengths_gmem: Any,
    out_gmem: Any,
    buffers: Any,
    results_smem: Any,
    arrivals: Any,
    turns: Any,
    *,
    group: int,
    num_tiles: int,
    shape: BlockShape,
) -> None:
    row, head, number = (lax.axis_index(name) for name in ("row", "head", "tiles"))
    warpgroup = lax.axis_index("warpgroup")
    at_once = COMPUTE_GROUPS * shape.columns // shape.head_dim
    start = starts_gmem[row]
    end = start + lengths_gmem[row]
    # All tiles of a program go through the same blocks: from the first that the earliest tile sees
    # to the last that the latest one does.
    early, _ = _tile_of(number * at_once, group, num_tiles)
    late, _ = _tile_of(number * at_once + (at_once - 1), group, num_tiles)
    first, last = block_range(start + early, jnp.minimum(end, start + late + BLOCK_ROWS), shape)
    is_busy = early < lengths_gmem[row]
    span = (start, end, first, jnp.where(is_busy, last, first))
    mine = warpgroup if at_once > 1 else 0
    first_token, member = _tile_of(number * at_once + mine, group, num_tiles)
    tile = (row, pl.ds(first_token, BLOCK_ROWS), head * group + member)
    columns = pl.ds(0 if at_once > 1 else warpgroup * shape.columns, shape.columns)

    @pl.when(warpgroup < COMPUTE_GROUPS)
    def _compute() -> None:
        plgpu.set_max_registers(COMPUTE_REGISTERS, action="increase")
        q_smem, q_ready = buffers[0].at[mine], arrivals[0].at[mine]
        copy = functools.partial(plgpu.copy_gmem_to_smem, q_gmem.at[tile], q_smem, q_ready)
        pl.when(warpgroup < at_once)(copy)
        plgpu.barrier_wait(q_ready)
        where = (warpgroup, first_token, columns)
        softmax = _tile_kernel(q_smem, buffers[1:], arrivals[1:], turns, where, span, shape)
        out_smem = results_smem.at[warpgroup]
        out_smem[...] = normalized(softmax).astype(jnp.bfloat16)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(out_smem, out_gmem.at[(*tile, columns)])
        plgpu.wait_smem_to_gmem(0)

    @pl.when(warpgroup == COMPUTE_GROUPS)
    def _copy() -> None:
        plgpu.set_max_registers(COPY_REGISTERS, action="decrease")
        place = (row, head, last_page_of(end, shape))
        sources = (k_gmem, v_gmem, table_gmem)
        _copy_blocks(sources, buffers[1:], arrivals[1:], turns[:2], place, span, shape)


def _copy_blocks(
    sources: Any, buffers: Any, arrivals: Any, is_read: Any, place: Any, span: Any, shape: Any
) -> None:
    """Brings block after block, each as soon as both warpgroups have read what is in its place."""
    k_gmem, v_gmem, table_gmem = sources
    row, head, last_page = place
    _, _, first, last = span
    stages = buffers[0].shape[0]

    def bring(block: Any, *, is_refill: bool) -> None:
        buffer = lax.rem(block - first, jnp.int32(stages))
        for which, pages in enumerate((k_gmem, v_gmem)):
            if is_refill:
                plgpu.barrier_wait(is_read[which].at[buffer])
            smem, ready = buffers[which].at[buffer], arrivals[which].at[buffer]
            fetch_block(pages, table_gmem, smem, ready, (row, head, block, last_page), shape)

    for ahead in range(stages):
        pl.when(first + ahead < last)(functools.partial(bring, first + ahead, is_refill=False))

    @pl.loop(first + stages, jnp.maximum(last, first + stages))
    def _refill(block: Any) -> None:
        bring(block, is_refill=True)


def _tile_kernel(
    q_smem: Any,
    buffers: Any,
    arrivals: Any,
    turns: Any,
    where: Any,
    span: Any,
    shape: BlockShape,
) -> Any:
    """One tile's softmax over the blocks of `span`."""
    k_smem, v_smem = buffers
    k_ready, v_ready = arrivals
    k_read, v_read, turn = turns
    warpgroup, first_token, columns = where
    start, end, first, last = span
    stages, keys = k_smem.shape[0], shape.block_keys
    query = start + first_token  # position of the tile's first token

    def pass_turn() -> None:
        plgpu.barrier_arrive(turn)
        plgpu.barrier_wait(turn)

    def step(block: Any, softmax: Any, *, is_masked: bool) -> Any:
        buffer = lax.rem(block - first, jnp.int32(stages))
        values_smem = v_smem.at[buffer, :, columns]
        is_refilled = block + stages < last
        plgpu.barrier_wait(k_ready.at[buffer])
        scores = block_scores(q_smem, k_smem.at[buffer], shape, pass_turn)
        pl.when(is_refilled)(lambda: plgpu.barrier_arrive(k_read.at[buffer]))
        if is_masked:
            rows = query + iota(scores.shape, 0, WGMMA, shape.interpret)
            scores = masked_scores(scores, block * keys, end, rows, shape)

        def wait() -> None:
            plgpu.barrier_arrive(turn)
            plgpu.barrier_wait(v_ready.at[buffer])
            if is_masked:
                erase_unseen(values_smem, block * keys, start, end, shape)
            plgpu.barrier_wait(turn)

        softmax = add_block(softmax, scores, values_smem, wait, shape)
        pl.when(is_refilled)(lambda: plgpu.barrier_arrive(v_read.at[buffer]))
        return softmax

    masked = functools.partial(step, is_masked=True)
    # Blocks that every query of the tile sees whole need no mask.
    whole_end = jnp.clip(lax.div(jnp.minimum(query + 1, end), jnp.int32(keys)), first, last)
    whole = first
    if shape.window:
        oldest = jnp.maximum(query + BLOCK_ROWS - shape.window, 0)
        whole = jnp.clip(lax.div(oldest + keys - 1, jnp.int32(keys)), first, whole_end)
    pl.when((warpgroup == 1) & (first < last))(pass_turn)
    softmax = empty_softmax(shape)
    if shape.window:
        softmax = lax.fori_loop(first, whole, masked, softmax)
    softmax = lax.fori_loop(whole, whole_end, functools.partial(step, is_masked=False), softmax)
    softmax = lax.fori_loop(whole_end, last, masked, softmax)
    pl.when((warpgroup == 0) & (first < last))(pass_turn)
    return softmax
