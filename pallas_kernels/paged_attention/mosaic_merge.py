"""The partial results of a decode step's splits in one, on Mosaic GPU.

XLA makes two kernels of it, since it would not compute a split's factor again for each column. One
program here is one query head of a row, a value or two a thread. Knows splits, not pages.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.mosaic_compat import full, load, simulation
from pallas_kernels.paged_attention.mosaic_blocks import LOWEST_PEAK, Softmax

THREADS = 128  # of a warpgroup
MERGED_HEAD_DIMS = (128, 256)  # whole values a thread


def merge_splits(
    parts: Softmax,
    sinks: jax.Array | None,
    first: jax.Array,
    ends: jax.Array,
    *,
    split: int,
    num_queries: int,
    group: int,
    interpret: bool,
) -> jax.Array:
    """The splits added in order: [B, Q, H, D] bf16; a row that has no keys becomes zeros.

    A split that holds no key of its row wrote nothing, and is not read.

    Args:
        parts: weighted [B, K, splits, Q·G, D], peaks and totals [B, K, splits, rows], of which
            the first Q·G are those of query heads, token by token.
        sinks: [K, rows] f32 – a score of each query row that no value goes with, in units of
            log2(e); None without them.
        first: [B] i32 – the first split of each row. ends: [B] i32 – its length in tokens.
        split: positions of a split. num_queries: Q. group: G, query heads of a kv head.
    """
    num_rows, num_kv_heads, num_splits, _, head_dim = parts.weighted.shape
    if head_dim not in MERGED_HEAD_DIMS:
        return _merge_in_xla(parts, sinks, first, ends, split, num_queries, group)
    out_shape = (num_rows, num_queries, num_kv_heads * group, head_dim)
    sizes = {"split": split, "num_splits": num_splits, "group": group}
    return plgpu.kernel(
        functools.partial(_merge_kernel, **sizes, interpret=interpret),
        out_type=jax.ShapeDtypeStruct(out_shape, jnp.bfloat16),
        grid=out_shape[:3],
        grid_names=("row", "query", "head"),
        kernel_name="merge_splits",
        interpret=simulation(interpret),
    )(*parts, first, ends, *([] if sinks is None else [sinks]))


def _merge_kernel(
    weighted_gmem: Any,
    peak_gmem: Any,
    total_gmem: Any,
    first_gmem: Any,
    ends_gmem: Any,
    *others: Any,
    split: int,
    num_splits: int,
    group: int,
    interpret: bool,
) -> None:
    *sinks_gmem, out_gmem = others
    row, query, query_head = (lax.axis_index(name) for name in ("row", "query", "head"))
    head = lax.div(query_head, jnp.int32(group))
    tile_row = query * group + lax.rem(query_head, jnp.int32(group))
    shape = (weighted_gmem.shape[-1],)
    layout = plgpu.Layout.WG_STRIDED(shape, shape[0] // THREADS)
    used = lax.div(ends_gmem[row] + (split - 1), jnp.int32(split)) - first_gmem[row]
    used = jnp.clip(used, 0, num_splits)

    def higher(one: Any, peak: Any) -> Any:
        return jnp.maximum(peak, peak_gmem[row, head, one, tile_row])

    lowest: Any = jnp.float32(LOWEST_PEAK)
    for gmem in sinks_gmem:
        lowest = jnp.maximum(lowest, gmem[head, tile_row])
    peak = lax.fori_loop(0, used, higher, lowest)

    def add(one: Any, sums: tuple[Any, Any]) -> tuple[Any, Any]:
        values = load(weighted_gmem.at[row, head, one, tile_row], layout, interpret)
        distance = peak_gmem[row, head, one, tile_row] - peak
        factor = jnp.exp2(lax.broadcast_in_dim(distance, shape, ()))
        total = lax.broadcast_in_dim(total_gmem[row, head, one, tile_row], shape, ())
        return sums[0] + values * factor, sums[1] + total * factor

    zero = full(shape, 0.0, layout, interpret)
    sunk = zero
    for gmem in sinks_gmem:
        sunk = zero + jnp.exp2(lax.broadcast_in_dim(gmem[head, tile_row] - peak, shape, ()))
    weighted, total = lax.fori_loop(0, used, add, (zero, sunk))
    total = jnp.where(total > 0, total, jnp.float32(1))
    out_gmem[row, query, query_head] = (weighted / total).astype(jnp.bfloat16)


def _merge_in_xla(
    parts: Softmax,
    sinks: jax.Array | None,
    first: jax.Array,
    ends: jax.Array,
    split: int,
    num_queries: int,
    group: int,
) -> jax.Array:
    """As `merge_splits`, for heads that are no whole values a thread."""
    weighted, *stats = parts
    peak, total = (array[:, :, :, : num_queries * group] for array in stats)
    num_rows, num_kv_heads, num_splits, _, head_dim = weighted.shape
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
    out = (out / sums[..., None]).astype(jnp.bfloat16)
    out = out.reshape(num_rows, num_kv_heads, num_queries, group, head_dim).swapaxes(1, 2)
    return out.reshape(num_rows, num_queries, num_kv_heads * group, head_dim)
