"""Prefill attention on Mosaic GPU: many query tokens a row, bound by arithmetic.

A tile is 64 tokens of one query head. In a program two warpgroups compute and a third only copies
keys and values ahead of them. The two take turns: while one multiplies, the other has its softmax.
They have a tile each or, where the registers do not hold a whole output (heads of 256), half the
output's columns each of the same tile. Where pages hold codes, the third warpgroup also widens them
(see `mosaic_codes`).

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
    LOG2_E,
    WGMMA,
    BlockShape,
    add_block,
    block_products,
    block_range,
    capped_scores,
    empty_softmax,
    erase_unseen,
    fetch_block,
    last_page_of,
    masked_scores,
    normalized,
    sunk_softmax,
)
from pallas_kernels.paged_attention.mosaic_codes import (
    INT8,
    Side,
    code_scratch,
    head_factor,
    kind_of,
    make_sides,
    page_arrays,
    ready_barriers,
    scaled_result,
    scaled_scores,
    scaled_weights,
    widen_blocks,
)
from pallas_kernels.paged_attention.pages import Pages
from pallas_kernels.paged_attention.tiles import BLOCK_ROWS, PrefillTiles

COMPUTE_GROUPS = 2
# Registers of a computing and a copying thread; (2 · 232 + 40) · 128 is what a multiprocessor has.
REGISTERS = (232, 40)
WIDENING_REGISTERS = (216, 72)  # where the copying warpgroup widens codes


def prefill_attention(
    q: jax.Array,
    k_pages: Pages,
    v_pages: Pages,
    table: jax.Array,
    starts: jax.Array,
    lengths: jax.Array,
    sinks: jax.Array | None,
    *,
    shape: BlockShape,
    tiles: PrefillTiles,
) -> jax.Array:
    """See `reference.paged_attention`; query tokens are padded to a multiple of 64."""
    num_rows, num_queries, num_heads, head_dim = q.shape
    arrays, scales = page_arrays(k_pages, v_pages)
    kinds, num_kv_heads = (kind_of(k_pages), kind_of(v_pages)), arrays[0].shape[1]
    padded = jnp.pad(q, ((0, 0), (0, -num_queries % BLOCK_ROWS), (0, 0), (0, 0)))
    group = num_heads // num_kv_heads
    num_tiles = padded.shape[1] // BLOCK_ROWS * group
    tiles_at_once = COMPUTE_GROUPS * shape.columns // head_dim
    inside = [] if sinks is None else [sinks.astype(jnp.float32) * jnp.float32(LOG2_E)]
    sizes = {"group": group, "num_tiles": num_tiles, "has_sinks": bool(inside)}
    run = plgpu.kernel(
        functools.partial(_prefill_kernel, **sizes, kinds=kinds, shape=shape),
        out_type=jax.ShapeDtypeStruct(padded.shape, jnp.bfloat16),
        grid=(num_kv_heads, -(-num_tiles // tiles_at_once), num_rows),
        grid_names=("head", "tiles", "row"),
        num_threads=COMPUTE_GROUPS + 1,
        thread_name="warpgroup",
        scratch_types=_scratch(head_dim, kinds, shape, tiles),
        compiler_params=plgpu.CompilerParams(approx_math=True, reduction_scratch_bytes=0),
        kernel_name="prefill_attention",
        interpret=simulation(shape.interpret),
    )
    return run(padded, *arrays, table, starts, lengths, *scales, *inside)[:, :num_queries]


def _scratch(
    head_dim: int, kinds: tuple[str, str], shape: BlockShape, tiles: PrefillTiles
) -> list[Any]:
    """Query rows and both pipelines, results, barriers, and what codes need beside it."""
    tiles_at_once = COMPUTE_GROUPS * shape.columns // head_dim
    pipeline = tiled_smem(tiles.stages, tiles.block_keys, head_dim)
    is_read = plgpu.Barrier(num_arrivals=COMPUTE_GROUPS, num_barriers=tiles.stages)
    return [
        [tiled_smem(tiles_at_once, BLOCK_ROWS, head_dim), pipeline, pipeline],
        tiled_smem(COMPUTE_GROUPS, BLOCK_ROWS, shape.columns),
        [plgpu.Barrier(num_barriers=tiles_at_once), *ready_barriers(kinds, shape, tiles)],
        [is_read, is_read, plgpu.Barrier(num_arrivals=COMPUTE_GROUPS)],
        code_scratch(kinds, head_dim, shape, tiles),
    ]


def _tile_of(number: Any, group: int, num_tiles: int) -> tuple[Any, Any]:
    """First query token and query head (within its kv head) of a tile; heads come first.

    Example: 3 query heads, 128 tokens → tiles 0 1 2 are tokens 0… of heads 0 1 2, tiles 3 4 5
    tokens 64… of them. Past the last tile the last is done twice.
    """
    number = jnp.minimum(number, num_tiles - 1)
    first = lax.div(number, jnp.int32(group)) * BLOCK_ROWS
    return first, lax.rem(number, jnp.int32(group))


def _prefill_kernel(
    *refs: Any,
    group: int,
    num_tiles: int,
    has_sinks: bool,
    kinds: tuple[str, str],
    shape: BlockShape,
) -> None:
    q_gmem, k_gmem, v_gmem, table_gmem, starts_gmem, lengths_gmem, *scales_gmem = refs[:-6]
    sinks_gmem = scales_gmem.pop() if has_sinks else None
    out_gmem, buffers, results_smem, arrivals, turns, code_refs = refs[-6:]
    pipelines = [Side(*one) for one in zip(buffers[1:], arrivals[1:], turns[:2], strict=True)]
    sides = make_sides([k_gmem, v_gmem], scales_gmem, pipelines, code_refs, kinds)
    compute_registers, copy_registers = WIDENING_REGISTERS if scales_gmem else REGISTERS
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
        plgpu.set_max_registers(compute_registers, action="increase")
        q_smem, q_ready = buffers[0].at[mine], arrivals[0].at[mine]
        copy = functools.partial(plgpu.copy_gmem_to_smem, q_gmem.at[tile], q_smem, q_ready)
        pl.when(warpgroup < at_once)(copy)
        plgpu.barrier_wait(q_ready)
        where = (warpgroup, first_token, columns)
        factors = tuple(head_factor(side, head) for side in sides)
        softmax = _tile_kernel(q_smem, sides, factors, turns[2], where, span, kinds, shape)
        softmax = scaled_result(softmax, factors[1])
        if sinks_gmem is not None:
            softmax = sunk_softmax(softmax, sinks_gmem[head * group + member])
        out_smem = results_smem.at[warpgroup]
        out_smem[...] = normalized(softmax).astype(jnp.bfloat16)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(out_smem, out_gmem.at[(*tile, columns)])
        plgpu.wait_smem_to_gmem(0)

    @pl.when(warpgroup == COMPUTE_GROUPS)
    def _copy() -> None:
        plgpu.set_max_registers(copy_registers, action="decrease")
        place = (row, head, last_page_of(end, shape))
        if scales_gmem:
            widen_blocks(sides, table_gmem, place, span[2:], shape)
        else:
            _copy_blocks(sides, table_gmem, place, span[2:], shape)


def _copy_blocks(
    sides: tuple[Side, Side], table_gmem: Any, place: Any, span: Any, shape: BlockShape
) -> None:
    """Brings block after block, each as soon as both warpgroups have read what is in its place."""
    row, head, last_page = place
    first, last = span
    stages = sides[0].blocks.shape[0]

    def bring(block: Any, *, is_refill: bool) -> None:
        buffer = lax.rem(block - first, jnp.int32(stages))
        for side in sides:
            if is_refill:
                plgpu.barrier_wait(side.is_read.at[buffer])
            smem, ready = side.blocks.at[buffer], side.ready.at[buffer]
            fetch_block(side.pages, table_gmem, smem, ready, (row, head, block, last_page), shape)

    for ahead in range(stages):
        pl.when(first + ahead < last)(functools.partial(bring, first + ahead, is_refill=False))

    @pl.loop(first + stages, jnp.maximum(last, first + stages))
    def _refill(block: Any) -> None:
        bring(block, is_refill=True)


def _tile_kernel(
    q_smem: Any,
    sides: tuple[Side, Side],
    factors: tuple[Any, Any],
    turn: Any,
    where: Any,
    span: Any,
    kinds: tuple[str, str],
    shape: BlockShape,
) -> Any:
    """One tile's softmax over the blocks of `span`."""
    (k_smem, k_ready, k_read, *_), (v_smem, v_ready, v_read, *_) = sides
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
        products = block_products(q_smem, k_smem.at[buffer], shape, pass_turn)
        scores = capped_scores(scaled_scores(products, sides[0], buffer, factors[0], shape), shape)
        pl.when(is_refilled)(lambda: plgpu.barrier_arrive(k_read.at[buffer]))
        if is_masked:
            rows = query + iota(scores.shape, 0, WGMMA, shape.interpret)
            scores = masked_scores(scores, block * keys, end, rows, shape)

        def wait(weights: jax.Array) -> jax.Array:
            plgpu.barrier_arrive(turn)
            plgpu.barrier_wait(v_ready.at[buffer])
            if is_masked and kinds[1] != INT8:  # which has no NaN
                erase_unseen(values_smem, block * keys, start, end, shape)
            weights = scaled_weights(weights, sides[1], buffer, shape)
            plgpu.barrier_wait(turn)
            return weights

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
