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
    real: int,
    interpret: bool,
) -> jax.Array:
    """The splits added in order: [B, K, real, D] bf16; a row that has no keys becomes zeros.

    A split that holds no key of its row wrote nothing, and is not read.

    Args:
        parts: weighted [B, K, splits, rows, D], peaks and totals [B, K, splits, rows].
        sinks: [K, rows] f32 – a score of each query row that no value goes with, in units of
            log2(e); None without them.
        first: [B] i32 – the first split of each row. ends: [B] i32 – its length in tokens.
        split: positions of a split. real: rows that are query heads; the others fill up a tile.
    """
    num_rows, num_kv_heads, num_splits, _, head_dim = parts.weighted.shape
    return plgpu.kernel(
        functools.partial(_merge_kernel, split=split, num_splits=num_splits, interpret=interpret),
        out_type=jax.ShapeDtypeStruct((num_rows, num_kv_heads, real, head_dim), jnp.bfloat16),
        grid=(num_rows, num_kv_heads, real),
        grid_names=("row", "head", "query"),
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
    interpret: bool,
) -> None:
    *sinks_gmem, out_gmem = others
    row, head, query = (lax.axis_index(name) for name in ("row", "head", "query"))
    shape = (weighted_gmem.shape[-1],)
    layout = plgpu.Layout.WG_STRIDED(shape, shape[0] // THREADS)
    used = lax.div(ends_gmem[row] + (split - 1), jnp.int32(split)) - first_gmem[row]
    used = jnp.clip(used, 0, num_splits)

    def higher(one: Any, peak: Any) -> Any:
        return jnp.maximum(peak, peak_gmem[row, head, one, query])

    lowest: Any = jnp.float32(LOWEST_PEAK)
    for gmem in sinks_gmem:
        lowest = jnp.maximum(lowest, gmem[head, query])
    peak = lax.fori_loop(0, used, higher, lowest)

    def add(one: Any, sums: tuple[Any, Any]) -> tuple[Any, Any]:
        values = load(weighted_gmem.at[row, head, one, query], layout, interpret)
        distance = peak_gmem[row, head, one, query] - peak
        factor = jnp.exp2(lax.broadcast_in_dim(distance, shape, ()))
        total = lax.broadcast_in_dim(total_gmem[row, head, one, query], shape, ())
        return sums[0] + values * factor, sums[1] + total * factor

    zero = full(shape, 0.0, layout, interpret)
    sunk = zero
    for gmem in sinks_gmem:
        sunk = zero + jnp.exp2(lax.broadcast_in_dim(gmem[head, query] - peak, shape, ()))
    weighted, total = lax.fori_loop(0, used, add, (zero, sunk))
    total = jnp.where(total > 0, total, jnp.float32(1))
    out_gmem[row, head, query] = (weighted / total).astype(jnp.bfloat16)
