"""`paged_attention` in Triton, for GPUs before Hopper: one kernel for decode and prefill.

A program is a tile of query rows of one (row, kv head) and one split of the context; rows are query
tokens times the query heads of the kv head. Splits lie on an absolute grid and are merged in order.
"""

# A kernel's body is in Triton's language, not typed as Python is; the package is optional.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from pallas_kernels.dispatch import Dtypes, Platform, Shapes, refuse
from pallas_kernels.paged_attention.pages import Pages, code_array
from pallas_kernels.triton_compat import why_not_triton

HEAD_DIMS = (64, 128, 256)
MIN_PAGE_TOKENS = 16  # keys of one product
MAX_SPLITS = 32
LOG2_E = math.log2(math.e)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTiles:
    """Sizes of the kernel.

    block_rows: query rows of a program, at least 16. block_keys: of a step, at most a page.
    split_tokens: positions of a program where one tile holds all query rows; a multiple of pages.
    """

    block_rows: int
    block_keys: int
    split_tokens: int = 1024
    stages: int = 2


def why_not(shapes: Shapes, dtypes: Dtypes, platform: Platform) -> str | None:
    """Why this implementation cannot serve a call, or None. Names: q, k_pages, v_pages."""
    return why_not_triton(platform) or _why_not_arrays(shapes, dtypes)


def _why_not_arrays(shapes: Shapes, dtypes: Dtypes) -> str | None:
    head_dim, page_tokens = shapes["q"][-1], shapes["k_pages"][2]
    for name in ("q", "k_pages", "v_pages"):
        if jnp.dtype(dtypes[name]) != jnp.bfloat16:
            return f"{name} is {jnp.dtype(dtypes[name])}; it takes bfloat16"
    if head_dim not in HEAD_DIMS:
        return f"heads have {head_dim} values; it takes {', '.join(map(str, HEAD_DIMS))}"
    if page_tokens < MIN_PAGE_TOKENS or page_tokens & (page_tokens - 1):
        return f"pages hold {page_tokens} tokens; it takes powers of two from {MIN_PAGE_TOKENS}"
    return None


@triton.jit
def paged_attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    starts_ptr,
    lengths_ptr,
    weighted_ptr,
    peak_ptr,
    total_ptr,
    rows: tl.constexpr,
    group: tl.constexpr,
    num_kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    page_tokens: tl.constexpr,
    columns: tl.constexpr,
    split: tl.constexpr,
    num_splits: tl.constexpr,
    scale_log2: tl.constexpr,
    window: tl.constexpr,
    softcap: tl.constexpr,
    block_rows: tl.constexpr,
    block_keys: tl.constexpr,
):
    """q [B, K, rows, D]; of each split: weighted [B, K, splits, rows, D], peaks and totals.
    columns: of the page table. scale_log2: with the factor that makes powers of e of those of 2."""
    batch, head = tl.program_id(0) // num_kv_heads, tl.program_id(0) % num_kv_heads
    part = tl.program_id(1)
    row = tl.program_id(2) * block_rows + tl.arange(0, block_rows)
    dim, key = tl.arange(0, head_dim), tl.arange(0, block_keys)
    start, length = tl.load(starts_ptr + batch), tl.load(lengths_ptr + batch)
    end = start + length
    query = start + row // group
    has_row = row < rows
    first_query = tl.program_id(2) * block_rows // group
    last_key = tl.minimum(
        end, start + (tl.program_id(2) * block_rows + block_rows - 1) // group + 1
    )
    oldest = tl.maximum(start + first_query - (window - 1), 0) if window > 0 else 0
    # With a window the splits begin with the first that the row's oldest query sees.
    base = tl.maximum(start - (window - 1), 0) // split if window > 0 else 0
    low = tl.maximum((base + part) * split, oldest // block_keys * block_keys)
    high = tl.minimum((base + part + 1) * split, last_key)
    high = tl.where(length > 0, high, low)
    base_q = (tl.program_id(0) * rows).to(tl.int64)
    places = q_ptr + (base_q + row[:, None]) * head_dim + dim[None, :]
    q = tl.load(places, mask=has_row[:, None], other=0.0)
    peak = tl.full((block_rows,), -1e29, tl.float32)
    total = tl.zeros((block_rows,), tl.float32)
    weighted = tl.zeros((block_rows, head_dim), tl.float32)
    for first in range(low, high, block_keys):
        page = tl.load(table_ptr + batch * columns + first // page_tokens).to(tl.int64)
        at = (page * num_kv_heads + head) * page_tokens + first % page_tokens
        position = first + key
        is_held = position < end
        if window > 0:  # what lies behind may have been given up, and be anything
            is_held = is_held & (position > start - window)
        k = tl.load(
            k_ptr + (at + key[None, :]) * head_dim + dim[:, None], mask=is_held[None, :], other=0.0
        )
        v = tl.load(
            v_ptr + (at + key[:, None]) * head_dim + dim[None, :], mask=is_held[:, None], other=0.0
        )
        scores = tl.dot(q, k, out_dtype=tl.float32) * scale_log2
        if softcap > 0:
            # tanh(x) = 1 - 2 / (1 + exp(2x))
            double = tl.exp2(scores * (2.0 / softcap))
            scores = (1.0 - 2.0 / (1.0 + double)) * (softcap * 1.4426950408889634)
        visible = (position[None, :] <= query[:, None]) & is_held[None, :]
        if window > 0:
            visible = visible & (position[None, :] > query[:, None] - window)
        scores = tl.where(visible, scores, -1e30)
        higher = tl.maximum(peak, tl.max(scores, axis=1))
        fade = tl.exp2(peak - higher)
        weights = tl.exp2(scores - higher[:, None])
        total = total * fade + tl.sum(weights, axis=1)
        weighted = weighted * fade[:, None] + tl.dot(weights.to(v.dtype), v, out_dtype=tl.float32)
        peak = higher
    base_out = ((tl.program_id(0) * num_splits + part) * rows).to(tl.int64)
    places = weighted_ptr + (base_out + row[:, None]) * head_dim + dim[None, :]
    tl.store(places, weighted, mask=has_row[:, None])
    tl.store(peak_ptr + base_out + row, peak, mask=has_row)
    tl.store(total_ptr + base_out + row, total, mask=has_row)


def default_tiles(rows: int, head_dim: int, page_tokens: int) -> AttentionTiles:
    """rows: query rows of a kv head."""
    block_rows = min(64, max(16, triton.next_power_of_2(rows)))
    keys = min(64 if head_dim <= 128 else 32, page_tokens)
    return AttentionTiles(block_rows=block_rows, block_keys=keys)


def launch_options(
    rows: int,
    group: int,
    k_shape: tuple[int, ...],
    columns: int,
    tiles: AttentionTiles,
    **options: Any,
) -> dict[str, Any]:
    """The kernel's constants. rows: query rows of a kv head. columns: of the page table.
    options: scale, window and softcap."""
    _, num_kv_heads, page_tokens, head_dim = k_shape
    positions, window = columns * page_tokens, options["window"]
    split = positions
    if rows <= tiles.block_rows:
        least = -(-positions // MAX_SPLITS)
        split = max(tiles.split_tokens, -(-least // page_tokens) * page_tokens)
    every = -(-positions // split)
    touched = -(-(window + rows // group - 1) // split) + 1
    return {
        "rows": rows,
        "group": group,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "page_tokens": page_tokens,
        "columns": columns,
        "split": split,
        "num_splits": min(every, touched) if window else every,
        "scale_log2": options["scale"] * LOG2_E,
        "window": window,
        "softcap": options["softcap"],
        "block_rows": tiles.block_rows,
        "block_keys": tiles.block_keys,
    }


def paged_attention(
    q: jax.Array,
    k_pages: Pages,
    v_pages: Pages,
    table: jax.Array,
    starts: jax.Array,
    lengths: jax.Array,
    sinks: jax.Array | None = None,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    tiles: AttentionTiles | None = None,
) -> jax.Array:
    """See `reference.paged_attention`; all arrays are bfloat16."""
    arrays = {"q": q, "k_pages": code_array(k_pages), "v_pages": code_array(v_pages)}
    shapes = {name: array.shape for name, array in arrays.items()}
    dtypes = {name: array.dtype for name, array in arrays.items()}
    refuse("paged_attention", "triton", _why_not_arrays(shapes, dtypes))
    num_rows, num_queries, num_heads, head_dim = q.shape
    num_kv_heads = shapes["k_pages"][1]
    group = num_heads // num_kv_heads
    grouped = q.reshape(num_rows, num_queries, num_kv_heads, group, head_dim)
    grouped = grouped.swapaxes(1, 2).reshape(num_rows, num_kv_heads, -1, head_dim)
    rows = grouped.shape[2]
    tiles = tiles or default_tiles(rows, head_dim, shapes["k_pages"][2])
    asked = {"scale": scale, "window": window, "softcap": softcap}
    options = launch_options(rows, group, shapes["k_pages"], table.shape[1], tiles, **asked)
    pages = (arrays["k_pages"], arrays["v_pages"])
    parts = _call([grouped, *pages, table, starts, lengths], tiles, options)
    weighted, peak, total = parts
    sinks = sinks_by_row(sinks, num_kv_heads, num_queries)
    out = merge_parts(weighted, peak, total, sinks).astype(q.dtype)
    out = out.reshape(num_rows, num_kv_heads, num_queries, group, head_dim)
    return out.swapaxes(1, 2).reshape(q.shape)


def _call(arrays: list[jax.Array], tiles: AttentionTiles, options: dict[str, Any]) -> Any:
    """Of each split: weighted values, peaks and totals."""
    from jax_triton import triton_call  # which needs a GPU build of jax

    num_rows, num_kv_heads, rows, head_dim = arrays[0].shape
    num_splits = options["num_splits"]
    stats = jax.ShapeDtypeStruct((num_rows, num_kv_heads, num_splits, rows), jnp.float32)
    return triton_call(
        *arrays,
        kernel=paged_attention_kernel,
        out_shape=[jax.ShapeDtypeStruct((*stats.shape, head_dim), jnp.float32), stats, stats],
        grid=(num_rows * num_kv_heads, num_splits, triton.cdiv(rows, tiles.block_rows)),
        num_warps=4 if head_dim <= 128 else 8,
        num_stages=tiles.stages,
        **options,
    )


def sinks_by_row(sinks: jax.Array | None, num_kv_heads: int, num_queries: int) -> jax.Array | None:
    """[K, rows] f32, in units of log2(e)."""
    if sinks is None:
        return None
    by_head = sinks.astype(jnp.float32).reshape(num_kv_heads, -1) * jnp.float32(LOG2_E)
    return jnp.tile(by_head, (1, num_queries))


def merge_parts(
    weighted: jax.Array, peak: jax.Array, total: jax.Array, sinks: jax.Array | None = None
) -> jax.Array:
    """The splits added in order: [B, K, rows, D] f32. A split without keys has a total of 0.

    sinks: [K, rows] f32 – a score of each row that no value goes with, in units of log2(e).
    """
    highest = jnp.max(peak, axis=2, keepdims=True)
    out = jnp.zeros(weighted.shape[:2] + weighted.shape[3:], jnp.float32)
    sums = jnp.zeros(out.shape[:3], jnp.float32)
    if sinks is not None:
        sink = sinks[None, :, None, :]
        highest = jnp.maximum(highest, sink)
        sums = sums + jnp.exp2(sink - highest)[:, :, 0]
    factors = jnp.exp2(peak - highest)
    for one in range(weighted.shape[2]):
        sums = sums + total[:, :, one] * factors[:, :, one]
        out = out + weighted[:, :, one] * factors[:, :, one, :, None]
    return out / jnp.where(sums > 0, sums, jnp.float32(1))[..., None]
