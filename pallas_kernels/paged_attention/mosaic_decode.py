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
from pallas_kernels.paged_attention.mosaic_merge import merge_splits
from pallas_kernels.paged_attention.pages import Pages
from pallas_kernels.paged_attention.tiles import BLOCK_ROWS, DecodeTiles

ROW_STEP = 8  # rows of one tile in shared memory
# Of a computing thread and of one that widens codes, where two warpgroups compute.
WIDENING_REGISTERS = (216, 72)


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
    arrays, scales = page_arrays(k_pages, v_pages)
    kinds, num_kv_heads = (kind_of(k_pages), kind_of(v_pages)), arrays[0].shape[1]
    num_queries, group = q.shape[1], q.shape[2] // num_kv_heads
    positions = table.shape[1] * shape.page_tokens
    split = tiles.split_for(positions)
    num_splits = _num_splits(positions, split, num_queries, shape.window)
    by_row = None if sinks is None else _sinks_by_row(sinks, num_kv_heads)
    # Those of splits join where the splits do.
    inside = [] if by_row is None or num_splits > 1 else [by_row]
    sizes = {"split": split, "num_splits": num_splits, "has_sinks": len(inside)}
    run = _decode_call(q.shape, num_kv_heads, kinds, sizes, shape, tiles)
    parts = run(q, *arrays, table, starts, lengths, *scales, *inside)
    if num_splits == 1:
        return parts[0]
    ends = jnp.where(lengths > 0, starts + lengths, 0)
    first = _first_split(starts, split, shape.window)
    sizes = {"split": split, "num_queries": num_queries, "interpret": shape.interpret}
    return merge_splits(Softmax(*parts), by_row, first, ends, group=group, **sizes)


def _sinks_by_row(sinks: jax.Array, num_kv_heads: int) -> jax.Array:
    """The sink of each query row of a tile, in units of log2(e): [K, BLOCK_ROWS] f32."""
    by_head = sinks.astype(jnp.float32).reshape(num_kv_heads, -1) * jnp.float32(LOG2_E)
    return jnp.tile(by_head, (1, BLOCK_ROWS))[:, :BLOCK_ROWS]


def _lay_in_tiles(lying_smem: Any, tiled_smem: Any, interpret: bool) -> None:
    """Query rows where the tensor cores read them; both refs are [BLOCK_ROWS, D], in one place.

    A copy into tiles must begin at a whole tile of ROW_STEP rows, and a kv head's query rows may
    begin anywhere: they are copied as they lie, and go through registers. Rows past them hold
    anything; no row looks at another.
    """
    values = load(lying_smem, WGMMA, interpret, optimized=False)
    plgpu.commit_smem()  # every thread has its rows before the first one is overwritten
    tiled_smem[...] = values
    plgpu.commit_smem()


def _places_of_queries(num_queries: int, group: int, head: Any) -> list[tuple[Any, Any]]:
    """Of each query token, its rows of a tile and its heads among all."""
    return [
        (pl.ds(query * group, group), pl.ds(head * group, group)) for query in range(num_queries)
    ]


def _read_queries(
    q_gmem: Any, lying_smem: Any, copied: Any, row: Any, lying: list[tuple[Any, Any]]
) -> None:
    """Starts a copy of each query token's heads."""
    for query, (rows, heads) in enumerate(lying):
        plgpu.copy_gmem_to_smem(q_gmem.at[row, query, heads], lying_smem.at[rows], copied)


def _write_output(
    out_smem: Any, out_gmem: Any, row: Any, lying: list[tuple[Any, Any]], columns: Any
) -> None:
    """Starts a copy of a warpgroup's columns of each query token's heads."""
    for query, (rows, heads) in enumerate(lying):
        plgpu.copy_smem_to_gmem(out_smem.at[rows], out_gmem.at[(row, query, heads, columns)])


def _write_parts(
    parts_smem: list[Any], parts_gmem: list[Any], place: tuple, columns: Any, is_first: Any
) -> None:
    """Starts the copies of a split's results; the first warpgroup has those of peaks and totals."""
    rows, filled = (pl.ds(0, one.shape[3]) for one in parts_gmem[:2])
    weighted_gmem = parts_gmem[0].at[(*place, slice(None), columns)]
    plgpu.copy_smem_to_gmem(parts_smem[0].at[rows], weighted_gmem)
    for smem, gmem in zip(parts_smem[1:], parts_gmem[1:], strict=True):
        copy = functools.partial(plgpu.copy_smem_to_gmem, smem.at[filled], gmem.at[place])
        pl.when(is_first)(copy)


def _share_registers(num_groups: int, *, widens: bool) -> None:
    """One computing warpgroup has enough; two get some of the one that widens codes."""
    if num_groups > 1:
        computing, widening = WIDENING_REGISTERS
        count, action = (widening, "decrease") if widens else (computing, "increase")
        plgpu.set_max_registers(count, action=action)


def _widen(num_groups: int, *arguments: Any) -> None:
    """The whole work of the last warpgroup where there are codes: see `widen_blocks`."""
    _share_registers(num_groups, widens=True)
    widen_blocks(*arguments)


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


def _blocks_of_split(
    start: Any, end: Any, part: Any, split: int, shape: BlockShape
) -> tuple[Any, Any]:
    """First and one past the last block of keys of one of a row's splits, `part` counted from the
    first that its queries see."""
    this, blocks = _first_split(start, split, shape.window) + part, split // shape.block_keys
    first, last = block_range(start, end, shape)
    return jnp.maximum(first, this * blocks), jnp.minimum(last, (this + 1) * blocks)


def _decode_call(
    q_shape: tuple[int, ...],
    num_kv_heads: int,
    kinds: tuple[str, str],
    sizes: dict[str, int],
    shape: BlockShape,
    tiles: DecodeTiles,
) -> Any:
    """The kernel as a function of arrays: one output, or the partial results of each split.

    sizes: positions in a split, number of splits, and whether the sinks are an argument.
    """
    num_rows, num_queries, num_heads, head_dim = q_shape
    sizes = sizes | {"num_queries": num_queries, "group": num_heads // num_kv_heads}
    num_groups = head_dim // shape.columns
    out_type, results = _results(q_shape, num_kv_heads, sizes["num_splits"], shape.columns)
    pipeline = tiled_smem(tiles.stages, tiles.block_keys, head_dim)
    is_read = plgpu.Barrier(num_arrivals=num_groups, num_barriers=tiles.stages)
    all_done = plgpu.Barrier(num_arrivals=num_groups)
    copied = plgpu.Barrier(num_arrivals=num_queries)
    queries = (
        [plgpu.SMEM((BLOCK_ROWS, head_dim), jnp.bfloat16)],
        [tiled_smem(BLOCK_ROWS, head_dim)],
    )
    return plgpu.kernel(
        functools.partial(_decode_kernel, **sizes, kinds=kinds, shape=shape),
        out_type=out_type,
        grid=(num_kv_heads, sizes["num_splits"], num_rows),
        grid_names=("head", "split", "row"),
        num_threads=num_groups + (kinds != (FLOATS, FLOATS)),
        thread_name="columns",
        scratch_types=[
            [shared_union(*queries, interpret=shape.interpret), copied],
            shared_union([pipeline, pipeline], results, interpret=shape.interpret),
            [plgpu.Barrier(), *ready_barriers(kinds, shape, tiles), is_read, all_done],
            code_scratch(kinds, head_dim, shape, tiles),
        ],
        compiler_params=plgpu.CompilerParams(approx_math=True, reduction_scratch_bytes=0),
        kernel_name="decode_attention",
        interpret=simulation(shape.interpret),
    )


def _results(
    q_shape: tuple[int, ...], num_kv_heads: int, num_splits: int, columns: int
) -> tuple[list[jax.ShapeDtypeStruct], list[Any]]:
    """What the kernel writes, and where in shared memory it is put together.

    The output in bfloat16; of splits the weighted values, peaks and totals in float32, by kv head,
    the last two filled up to what can be copied. Tiles are quicker to fill, but copied whole.
    """
    num_rows, num_queries, num_heads, head_dim = q_shape
    tile = (head_dim // columns, BLOCK_ROWS, columns)
    if num_splits == 1:
        return [jax.ShapeDtypeStruct(q_shape, jnp.bfloat16)], [plgpu.SMEM(tile, jnp.bfloat16)]
    real = num_queries * num_heads // num_kv_heads
    parts = (num_rows, num_kv_heads, num_splits)
    stats = jax.ShapeDtypeStruct((*parts, real + -real % ROW_STEP), jnp.float32)
    out_type = [jax.ShapeDtypeStruct((*parts, real, head_dim), jnp.float32), stats, stats]
    smem = [plgpu.SMEM((BLOCK_ROWS,), jnp.float32)] * 2
    weighted = plgpu.SMEM(tile, jnp.float32)
    if real % ROW_STEP == 0:
        weighted = tiled_smem(*tile, dtype=jnp.float32)
    return out_type, [weighted, *smem]


def _decode_kernel(
    *refs: Any,
    num_queries: int,
    group: int,
    split: int,
    num_splits: int,
    has_sinks: int,
    kinds: tuple[str, str],
    shape: BlockShape,
) -> None:
    """Every warpgroup computes all scores, and the output for its own columns of the values; where
    there are codes, the last one brings them instead."""
    q_gmem, k_gmem, v_gmem, table_gmem, starts_gmem, lengths_gmem, *others = refs
    num_scales = len(kinds) - kinds.count(FLOATS)
    scales_gmem, others = others[:num_scales], others[num_scales:]
    sinks_gmem, others = others[:has_sinks], others[has_sinks:]
    *outputs, queries, union_smem, barriers, code_refs = others
    (k_smem, v_smem), results_smem = union_smem
    ((lying_smem,), (q_smem,)), copied = queries
    q_ready, k_ready, v_ready, is_read, all_done = barriers
    pipelines = [Side(k_smem, k_ready, is_read), Side(v_smem, v_ready, None)]
    sides = make_sides([k_gmem, v_gmem], scales_gmem, pipelines, code_refs, kinds)
    row, head, part = (lax.axis_index(name) for name in ("row", "head", "split"))
    this_group, num_groups = lax.axis_index("columns"), shape.head_dim // shape.columns
    columns = pl.ds(this_group * shape.columns, shape.columns)
    stages, keys = k_smem.shape[0], shape.block_keys
    start = starts_gmem[row]
    end = start + lengths_gmem[row]
    first, last = _blocks_of_split(start, end, part, split, shape)
    is_busy = (lengths_gmem[row] > 0) & (first < last)
    k_factor = head_factor(sides[0], head)
    lying = _places_of_queries(num_queries, group, head)

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
        if num_splits == 1:
            _write_output(out_smem, outputs[0], row, lying, columns)
        else:
            parts_smem, place = [out_smem, *results_smem[1:]], (row, head, part)
            _write_parts(parts_smem, outputs, place, columns, this_group == 0)
        plgpu.wait_smem_to_gmem(0)

    def attend() -> None:
        if num_scales:
            _share_registers(num_groups, widens=False)

        @pl.when(this_group == 0)
        def _start() -> None:
            _read_queries(q_gmem, lying_smem, copied, row, lying)
            for ahead in range(stages if not num_scales else 0):
                pl.when(first + ahead < last)(functools.partial(fetch, first + ahead))
            plgpu.barrier_wait(copied)
            _lay_in_tiles(lying_smem, q_smem, shape.interpret)
            plgpu.barrier_arrive(q_ready)

        plgpu.barrier_wait(q_ready)
        softmax = lax.fori_loop(first, last, step, empty_softmax(shape))
        softmax = scaled_result(softmax, head_factor(sides[1], head))
        for gmem in sinks_gmem:
            sink = load(gmem.at[head], WGMMA_ROWS, shape.interpret, optimized=False)
            softmax = sunk_softmax(softmax, sink)
        store([normalized(softmax)] if num_splits == 1 else softmax)

    is_reader = this_group < num_groups if num_scales else True
    if num_scales:
        place, blocks = (row, head, last_page_of(end, shape)), (first, last)
        bring = functools.partial(_widen, num_groups, sides, table_gmem, place, blocks, shape)
        pl.when(is_busy & (this_group == num_groups))(bring)
    pl.when(is_busy & is_reader)(attend)
    if num_splits == 1:  # else a split without keys is left out of the merge
        is_idle = jnp.logical_not(is_busy) & is_reader
        pl.when(is_idle)(lambda: store([empty_softmax(shape).weighted]))
