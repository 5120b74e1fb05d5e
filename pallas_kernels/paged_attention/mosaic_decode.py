"""Decode attention on Mosaic GPU: few query tokens a row, long contexts, bound by bandwidth.

One program is one (row, kv head, split of the context): it reads each key and value once for all
query heads of the kv head, `stages` blocks ahead. Splits lie on an absolute grid and are merged in
order, so a row's result depends on nothing but the row. Where pages hold codes, one more warpgroup
brings them (see `mosaic_codes`).
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.mosaic_compat import iota, load, shared_union, simulation, tiled_smem
from pallas_kernels.paged_attention.mosaic_blocks import (
    LOG2_E,
    WGMMA,
    WGMMA_ROWS,
    BlockShape,
    Softmax,
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
    FLOATS,
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
from pallas_kernels.paged_attention.mosaic_merge import MERGED_HEAD_DIMS, merge_splits
from pallas_kernels.paged_attention.pages import Pages
from pallas_kernels.paged_attention.tiles import BLOCK_ROWS, DecodeTiles

ROW_STEP = 8  # rows of one tile in shared memory


def decode_attention(
    q: jax.Array,
    k_pages: Pages,
    v_pages: Pages,
    table: jax.Array,
    starts: jax.Array,
    lengths: jax.Array,
    sinks: jax.Array | None,
    *,
    shape: BlockShape,
    tiles: DecodeTiles,
) -> jax.Array:
    """See `reference.paged_attention`; a kv head's query rows fit in one tile (Q·G ≤ 64)."""
    num_rows, num_queries, num_heads, head_dim = q.shape
    arrays, scales = page_arrays(k_pages, v_pages)
    kinds, num_kv_heads = (kind_of(k_pages), kind_of(v_pages)), arrays[0].shape[1]
    group = num_heads // num_kv_heads
    real = num_queries * group
    rows_shape = (num_rows, num_kv_heads, real + -real % ROW_STEP, head_dim)
    grouped = _grouped_queries(q, rows_shape)
    positions = table.shape[1] * shape.page_tokens
    split = tiles.split_for(positions)
    num_splits = _num_splits(positions, split, num_queries, shape.window)
    by_row = None if sinks is None else _sinks_by_row(sinks, num_kv_heads)
    # Those of splits join where the splits do.
    inside = [] if by_row is None or num_splits > 1 else [by_row]
    sizes = {"num_queries": num_queries, "group": group, "split": split, "num_splits": num_splits}
    run = _decode_call(rows_shape, kinds, sizes | {"has_sinks": len(inside)}, shape, tiles)
    parts = run(grouped, *arrays, table, starts, lengths, *scales, *inside)
    out = parts[0][:, :, :real]
    if num_splits > 1:
        out = _merge(Softmax(*parts), by_row, starts, lengths, split, real, shape)
    out = out.reshape(num_rows, num_kv_heads, num_queries, group, head_dim)
    return out.swapaxes(1, 2).reshape(q.shape)


def _sinks_by_row(sinks: jax.Array, num_kv_heads: int) -> jax.Array:
    """The sink of each query row of a tile, in units of log2(e): [K, BLOCK_ROWS] f32."""
    by_head = sinks.astype(jnp.float32).reshape(num_kv_heads, -1) * jnp.float32(LOG2_E)
    return jnp.tile(by_head, (1, BLOCK_ROWS))[:, :BLOCK_ROWS]


def _grouped_queries(q: jax.Array, rows_shape: tuple[int, int, int, int]) -> jax.Array:
    """Query rows by kv head, filled up with zeros: [B, K, rows, D].

    A copy of a tile must begin at a whole tile, so heads cannot be taken where they lie.
    """
    num_rows, num_kv_heads, rows, head_dim = rows_shape
    grouped = q.reshape(num_rows, q.shape[1], num_kv_heads, -1, head_dim)
    grouped = grouped.swapaxes(1, 2).reshape(num_rows, num_kv_heads, -1, head_dim)
    return jnp.pad(grouped, ((0, 0), (0, 0), (0, rows - grouped.shape[2]), (0, 0)))


def _num_splits(positions: int, split: int, num_queries: int, window: int) -> int:
    """Programs for one row and kv head: all splits, or those that a window can touch."""
    every = -(-positions // split)
    if not window:
        return every
    return min(every, -(-(window + num_queries - 1) // split) + 1)


def _first_split(starts: Any, split: int, window: int) -> Any:
    """The first split that a row's queries see."""
    oldest = jnp.maximum(starts - (window - 1), 0) if window else starts * 0
    return lax.div(oldest, jnp.int32(split))


def _decode_call(
    rows_shape: tuple[int, ...],
    kinds: tuple[str, str],
    sizes: dict[str, int],
    shape: BlockShape,
    tiles: DecodeTiles,
) -> Any:
    """The kernel as a function of arrays: one output, or the partial results of each split.

    sizes: query tokens, query heads of a kv head, positions in a split, number of splits, and
        whether the sinks are an argument.
    """
    num_rows, num_kv_heads, _, head_dim = rows_shape
    num_groups = head_dim // shape.columns
    out_type, results = _results(rows_shape, sizes["num_splits"], shape.columns)
    pipeline = tiled_smem(tiles.stages, tiles.block_keys, head_dim)
    is_read = plgpu.Barrier(num_arrivals=num_groups, num_barriers=tiles.stages)
    all_done = plgpu.Barrier(num_arrivals=num_groups)
    sinks = [plgpu.SMEM((BLOCK_ROWS,), jnp.float32)] * sizes["has_sinks"]
    q_ready = plgpu.Barrier(num_arrivals=1 + sizes["has_sinks"])
    return plgpu.kernel(
        functools.partial(_decode_kernel, **sizes, rows=rows_shape[2], kinds=kinds, shape=shape),
        out_type=out_type,
        grid=(num_kv_heads, sizes["num_splits"], num_rows),
        grid_names=("head", "split", "row"),
        num_threads=num_groups + (kinds != (FLOATS, FLOATS)),
        thread_name="columns",
        scratch_types=[
            [tiled_smem(BLOCK_ROWS, head_dim), *sinks],
            shared_union([pipeline, pipeline], results, interpret=shape.interpret),
            [q_ready, *ready_barriers(kinds, shape, tiles), is_read, all_done],
            code_scratch(kinds, head_dim, shape, tiles),
        ],
        compiler_params=plgpu.CompilerParams(approx_math=True, reduction_scratch_bytes=0),
        kernel_name="decode_attention",
        interpret=simulation(shape.interpret),
    )


def _results(
    rows_shape: tuple[int, ...], num_splits: int, columns: int
) -> tuple[list[jax.ShapeDtypeStruct], list[Any]]:
    """What the kernel writes, and where in shared memory it is put together.

    The output in bfloat16; of splits the weighted values, peaks and totals in float32.
    """
    num_rows, num_kv_heads, rows, head_dim = rows_shape
    tile = (head_dim // columns, BLOCK_ROWS, columns)
    if num_splits == 1:
        return [jax.ShapeDtypeStruct(rows_shape, jnp.bfloat16)], [tiled_smem(*tile)]
    parts = (num_rows, num_kv_heads, num_splits, rows)
    stats = jax.ShapeDtypeStruct(parts, jnp.float32)
    out_type = [jax.ShapeDtypeStruct((*parts, head_dim), jnp.float32), stats, stats]
    smem = [plgpu.SMEM((BLOCK_ROWS,), jnp.float32)] * 2
    return out_type, [tiled_smem(*tile, dtype=jnp.float32), *smem]


def _decode_kernel(
    *refs: Any,
    num_queries: int,
    group: int,
    split: int,
    num_splits: int,
    has_sinks: int,
    rows: int,
    kinds: tuple[str, str],
    shape: BlockShape,
) -> None:
    """Every warpgroup computes all scores, and the output for its own columns of the values; where
    there are codes, the last one brings them instead."""
    q_gmem, k_gmem, v_gmem, table_gmem, starts_gmem, lengths_gmem, *others = refs
    num_scales = len(kinds) - kinds.count(FLOATS)
    scales_gmem, others = others[:num_scales], others[num_scales:]
    sinks_gmem, others = others[:has_sinks], others[has_sinks:]
    *outputs, (q_smem, *sinks_smem), union_smem, barriers, code_refs = others
    (k_smem, v_smem), results_smem = union_smem
    q_ready, k_ready, v_ready, is_read, all_done = barriers
    pipelines = [Side(k_smem, k_ready, is_read), Side(v_smem, v_ready, None)]
    sides = make_sides([k_gmem, v_gmem], scales_gmem, pipelines, code_refs, kinds)
    row, head, part = (lax.axis_index(name) for name in ("row", "head", "split"))
    this_group, num_groups = lax.axis_index("columns"), shape.head_dim // shape.columns
    columns = pl.ds(this_group * shape.columns, shape.columns)
    stages, keys = k_smem.shape[0], shape.block_keys
    start = starts_gmem[row]
    end = start + lengths_gmem[row]
    this = _first_split(start, split, shape.window) + part
    first, last = block_range(start, end, shape)
    first = jnp.maximum(first, this * (split // keys))
    last = jnp.minimum(last, (this + 1) * (split // keys))
    is_busy = (lengths_gmem[row] > 0) & (first < last)
    k_factor, v_factor = (head_factor(side, head) for side in sides)

    def fetch(block: Any) -> None:
        buffer = lax.rem(block - first, jnp.int32(stages))
        place = (row, head, block, last_page_of(end, shape))
        fetch_block(k_gmem, table_gmem, k_smem.at[buffer], k_ready.at[buffer], place, shape)
        fetch_block(v_gmem, table_gmem, v_smem.at[buffer], v_ready.at[buffer], place, shape)

    def step(block: Any, softmax: Any) -> Any:
        buffer = lax.rem(block - first, jnp.int32(stages))
        values_smem = v_smem.at[buffer, :, columns]
        plgpu.barrier_wait(k_ready.at[buffer])
        products = block_products(q_smem, k_smem.at[buffer], shape)
        products = scaled_scores(products, sides[0], buffer, k_factor, shape)
        scores = capped_scores(products, shape)
        query: Any = start
        if num_queries > 1:  # row r holds query token r // group
            query = start + lax.div(iota(scores.shape, 0, WGMMA, shape.interpret), jnp.int32(group))
        scores = masked_scores(scores, block * keys, end, query, shape)

        def wait(weights: jax.Array) -> jax.Array:
            plgpu.barrier_wait(v_ready.at[buffer])
            if kinds[1] != INT8:  # which has no NaN
                erase_unseen(values_smem, block * keys, start, end, shape)
            return scaled_weights(weights, sides[1], buffer, shape)

        softmax = add_block(softmax, scores, values_smem, wait, shape)

        @pl.when(block + stages < last)
        def _refill() -> None:
            if num_groups > 1 or num_scales:
                plgpu.barrier_arrive(is_read.at[buffer])
            if num_scales:
                return

            @pl.when(this_group == 0)
            def _fetch() -> None:
                if num_groups > 1:
                    plgpu.barrier_wait(is_read.at[buffer])
                fetch(block + stages)

        return softmax

    def store(values: Any) -> None:
        if num_groups > 1:  # the results take the place of blocks that the others may still read
            plgpu.barrier_arrive(all_done)
            plgpu.barrier_wait(all_done)
        out_smem = results_smem[0].at[this_group]
        out_smem[...] = values[0].astype(out_smem.dtype)
        for smem, value in zip(results_smem[1:], values[1:], strict=True):
            pl.when(this_group == 0)(functools.partial(smem.__setitem__, ..., value))
        plgpu.commit_smem()
        place = (row, head) if num_splits == 1 else (row, head, part)
        out = outputs[0].at[(*place, slice(None), columns)]
        plgpu.copy_smem_to_gmem(out_smem.at[pl.ds(0, rows)], out)
        for smem, out in zip(results_smem[1:], outputs[1:], strict=True):
            copy = functools.partial(
                plgpu.copy_smem_to_gmem, smem.at[pl.ds(0, rows)], out.at[place]
            )
            pl.when(this_group == 0)(copy)
        plgpu.wait_smem_to_gmem(0)

    def attend() -> None:
        @pl.when(this_group == 0)
        def _start() -> None:
            plgpu.copy_gmem_to_smem(q_gmem.at[row, head], q_smem.at[pl.ds(0, rows)], q_ready)
            for gmem, smem in zip(sinks_gmem, sinks_smem, strict=True):
                plgpu.copy_gmem_to_smem(gmem.at[head], smem, q_ready)
            for ahead in range(stages if not num_scales else 0):
                pl.when(first + ahead < last)(functools.partial(fetch, first + ahead))

        plgpu.barrier_wait(q_ready)
        softmax = lax.fori_loop(first, last, step, empty_softmax(shape))
        softmax = scaled_result(softmax, v_factor)
        if has_sinks:
            softmax = sunk_softmax(softmax, load(sinks_smem[0], WGMMA_ROWS, shape.interpret))
        store([normalized(softmax)] if num_splits == 1 else softmax)

    is_reader = this_group < num_groups if num_scales else True
    if num_scales:
        place = (row, head, last_page_of(end, shape))
        bring = functools.partial(widen_blocks, sides, table_gmem, place, (first, last), shape)
        pl.when(is_busy & (this_group == num_groups))(bring)
    pl.when(is_busy & is_reader)(attend)
    if num_splits == 1:  # else a split without keys is left out of the merge
        is_idle = jnp.logical_not(is_busy) & is_reader
        pl.when(is_idle)(lambda: store([empty_softmax(shape).weighted]))


def _merge(
    parts: Softmax,
    sinks: jax.Array | None,
    starts: jax.Array,
    lengths: jax.Array,
    split: int,
    real: int,
    shape: BlockShape,
) -> jax.Array:
    """The splits' partial results in one, added in order: [B, K, real, D] bf16.

    sinks: [K, BLOCK_ROWS] of each row's head. A split that holds no key of its row wrote nothing:
    it is left out.
    """
    ends = jnp.where(lengths > 0, starts + lengths, 0)
    first = _first_split(starts, split, shape.window)
    if shape.head_dim in MERGED_HEAD_DIMS:
        sizes = {"split": split, "real": real, "interpret": shape.interpret}
        return merge_splits(parts, sinks, first, ends, **sizes)
    weighted, peak, total = (array[:, :, :, :real] for array in parts)
    num_splits = weighted.shape[2]
    splits = first[:, None] + jnp.arange(num_splits, dtype=jnp.int32)[None]
    is_used = (splits * split < ends[:, None])[:, None, :, None]  # [B, 1, splits, 1]
    peak = jnp.where(is_used, peak, jnp.float32(-jnp.inf))
    highest = jnp.maximum(jnp.max(peak, axis=2, keepdims=True), jnp.float32(-1e30))
    out = jnp.zeros(weighted.shape[:2] + weighted.shape[3:], jnp.float32)
    sums = jnp.zeros(out.shape[:3], jnp.float32)
    if sinks is not None:
        sink = sinks[None, :, None, : peak.shape[3]]
        highest = jnp.maximum(highest, sink)
        sums = jnp.exp2(sink - highest)[:, :, 0]
    factors = jnp.exp2(peak - highest)
    for one in range(num_splits):
        factor, used = factors[:, :, one], is_used[:, :, one]
        sums = sums + jnp.where(used, total[:, :, one] * factor, jnp.float32(0))
        add = weighted[:, :, one] * factor[..., None]
        out = out + jnp.where(used[..., None], add, jnp.float32(0))
    sums = jnp.where(sums > 0, sums, jnp.float32(1))
    return (out / sums[..., None]).astype(jnp.bfloat16)
