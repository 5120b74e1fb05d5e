"""The specification of `paged_attention` in plain XLA, in the form that keeps bits.

On a CPU the bits of a row do not depend on the other rows, on how many rows or query tokens there
are, nor on the page size (up to 64 tokens): key blocks lie on an absolute grid, the softmax runs
over them in order, sums are folded, and all queries of a kv head form one row axis of a batched
product (a second free axis would change the bits).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from einops import rearrange
from jax import lax

from pallas_kernels.folded_sum import folded_sum
from pallas_kernels.paged_attention.pages import (
    HeadScaledPages,
    Pages,
    TokenScaledPages,
    as_floats,
    code_array,
)
from pallas_kernels.rounding import rounded

BLOCK_TOKENS = 64  # keys handled at once; fixed, since it decides the order of additions
HEAD_DIM_STEP = 64  # heads are padded to a multiple: else the order of a sum depends on the rows
MIN_QUERY_ROWS = 2  # one row takes another path
MASKED = -1e30


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
) -> jax.Array:
    """Causal attention of each row's query tokens against its pages.

    Query token i of row b stands at position starts[b] + i and sees the keys at positions up to its
    own, with `window` above 0 only the last `window` of them. Its own key is read from the pages
    too: keys and values are written before attention runs.

    Args:
        q: [B, Q, H, D] f32 or bf16 – rotated queries.
        k_pages: [P, K, S, D] f32, bf16, or u16 that holds the bits of bf16 – key pages of one
            layer, S a power of two; or codes with scales (see `pages`).
        v_pages: [P, K, S, D] – value pages; they may be of another kind than the keys'.
        table: [B, N] i32 – page of each S positions of a row; what lies past its end is not read
            into the result.
        starts: [B] i32 – position of a row's first query token.
        lengths: [B] i32 – how many of the Q query tokens are real; 0 for an empty row. What comes
            out for the others means nothing and need not be finite.
        sinks: [H] f32 – a score a query head that no scale and no cap changes: it takes its share
            of the softmax and adds nothing to the output. None for no such scores.
        scale: factor on the scores.
        window: tokens a query sees, its own included; 0 for all.
        softcap: above 0, scores become softcap · tanh(score / softcap).

    Returns:
        [B, Q, H, D] of q's dtype.

    Source: FlashAttention-2 (Dao 2023), algorithm 1, over the pages of vLLM (Kwon et al. 2023).
    Cost: 4·B·Q·H·D FLOPs a key, 2·K·D values read a key and row.
    """
    num_rows, num_queries, num_heads, head_dim = q.shape
    num_kv_heads = code_array(k_pages).shape[1]
    group = num_heads // num_kv_heads
    positions = starts[:, None] + jnp.arange(num_queries, dtype=jnp.int32)[None, :]  # [B, Q]
    queries, query_positions = _as_one_row_axis(q, positions, num_kv_heads, scale)
    first, last = _block_range(starts, lengths, window)

    def attend_block(block, softmax):
        keys = _fetch_block(k_pages, table, block)
        values = _fetch_block(v_pages, table, block)
        key_positions = block * BLOCK_TOKENS + jnp.arange(BLOCK_TOKENS, dtype=jnp.int32)
        visible = _visible(query_positions, key_positions, window)
        # What no query of the row sees may hold anything, also NaN, and 0 · NaN is NaN.
        held = _held(starts, lengths, key_positions, window, num_kv_heads)
        values = jnp.where(held, values, jnp.float32(0))
        scores = _capped(_batched_dot(queries, keys, contract_last=True), softcap)
        return _add_block(softmax, scores, values, visible)

    before = _empty_softmax(queries) if sinks is None else _sunk_softmax(queries, sinks, group)
    softmax = lax.fori_loop(first, last, attend_block, before)
    out = softmax.weighted / jnp.where(softmax.total > 0, softmax.total, jnp.float32(1))
    out = out[:, : num_queries * group, :head_dim]
    out = rearrange(out, "(b k) (q g) d -> b q (k g) d", b=num_rows, q=num_queries)
    return out.astype(q.dtype)


class RunningSoftmax(NamedTuple):
    """What the loop over blocks carries, for M query rows of each of B·K row-heads."""

    peak: jax.Array  # [B·K, M, 1] f32, largest score so far
    total: jax.Array  # [B·K, M, 1] f32, sum of exp(score - peak)
    weighted: jax.Array  # [B·K, M, D] f32, sum of exp(score - peak) · value


def _empty_softmax(queries):
    return RunningSoftmax(
        peak=jnp.full((*queries.shape[:2], 1), MASKED, jnp.float32),
        total=jnp.zeros((*queries.shape[:2], 1), jnp.float32),
        weighted=jnp.zeros(queries.shape, jnp.float32),
    )


def _sunk_softmax(queries, sinks, group):
    """One that has seen the sink of each row's head, as a key whose value is 0."""
    by_head = jnp.tile(sinks.astype(jnp.float32).reshape(-1, group), (1, queries.shape[1]))
    rows = jnp.tile(by_head[:, : queries.shape[1]], (queries.shape[0] // by_head.shape[0], 1))
    return _empty_softmax(queries)._replace(
        peak=rows[..., None], total=jnp.ones((*rows.shape, 1), jnp.float32)
    )


def _add_block(softmax, scores, values, visible):
    scores = jnp.where(visible, scores, jnp.float32(MASKED))
    peak = jnp.maximum(softmax.peak, jnp.max(scores, axis=-1, keepdims=True))
    weights = jnp.where(visible, jnp.exp(scores - peak), jnp.float32(0))
    fade = jnp.exp(softmax.peak - peak)
    product = _batched_dot(weights, values, contract_last=False)
    return RunningSoftmax(
        peak=peak,
        total=rounded(softmax.total * fade) + folded_sum(weights),
        weighted=rounded(softmax.weighted * fade) + product,
    )


def _capped(scores, softcap):
    if not softcap:
        return scores
    cap = jnp.float32(softcap)
    return rounded(cap * jnp.tanh(scores / cap))


def _as_one_row_axis(q, positions, num_kv_heads, scale):
    """Queries as [B·K, Q·G, D], padded in rows and head size, and the position of each row."""
    grouped = rearrange(q, "b q (k g) d -> (b k) (q g) d", k=num_kv_heads)
    grouped = grouped.astype(jnp.float32) * jnp.float32(scale)
    group = q.shape[2] // num_kv_heads
    row_positions = jnp.repeat(jnp.repeat(positions, group, axis=1), num_kv_heads, axis=0)
    missing_rows = max(0, MIN_QUERY_ROWS - grouped.shape[1])
    missing_dims = -grouped.shape[2] % HEAD_DIM_STEP
    grouped = jnp.pad(grouped, ((0, 0), (0, missing_rows), (0, missing_dims)))
    return grouped, jnp.pad(row_positions, ((0, 0), (0, missing_rows)))


def _block_range(starts, lengths, window):
    """First and one past the last block that any row needs: one program for every length."""
    busy = lengths > 0
    ends = jnp.max(jnp.where(busy, starts + lengths, 0))
    last = (ends + BLOCK_TOKENS - 1) // BLOCK_TOKENS
    if not window:
        return jnp.int32(0), last
    oldest = jnp.where(busy, jnp.maximum(starts - (window - 1), 0), jnp.iinfo(jnp.int32).max)
    return jnp.minimum(jnp.min(oldest) // BLOCK_TOKENS, last), last


def _fetch_block(pages, table, block):
    """Keys or values of one block for every row: [B·K, BLOCK_TOKENS, D] f32, heads padded."""
    tokens = as_floats(_gather_block(code_array(pages), table, block))
    if isinstance(pages, TokenScaledPages):
        tokens = tokens * as_floats(_gather_block(pages.scales[..., None], table, block))
    if isinstance(pages, HeadScaledPages):
        tokens = tokens * pages.scales[None, :, None, None]
    tokens = rearrange(tokens, "b k t d -> (b k) t d")
    return jnp.pad(tokens, ((0, 0), (0, 0), (0, -tokens.shape[-1] % HEAD_DIM_STEP)))


def _gather_block(pages, table, block):
    """[B, K, BLOCK_TOKENS, D] of the pages' dtype."""
    num_heads, page_tokens, head_dim = pages.shape[1:]
    if page_tokens >= BLOCK_TOKENS:
        parts = page_tokens // BLOCK_TOKENS
        page = lax.dynamic_index_in_dim(table, block // parts, axis=1, keepdims=False)
        split = pages.reshape(-1, num_heads, parts, BLOCK_TOKENS, head_dim)
        return split[page, :, lax.rem(block, jnp.int32(parts))]
    count = BLOCK_TOKENS // page_tokens
    # The table may end inside the last block: pad it with the null page.
    table = jnp.pad(table, ((0, 0), (0, -table.shape[1] % count)))
    page = lax.dynamic_slice_in_dim(table, block * count, count, axis=1)
    return rearrange(pages[page], "b n k s d -> b k (n s) d")


def _held(starts, lengths, key_positions, window, num_kv_heads):
    """Positions that a row still keeps: before its end, and not behind its first query's window."""
    held = key_positions[None, :] < (starts + lengths)[:, None]
    if window:
        held &= key_positions[None, :] >= (starts - (window - 1))[:, None]
    return jnp.repeat(held, num_kv_heads, axis=0)[:, :, None]


def _visible(query_positions, key_positions, window):
    distance = query_positions[:, :, None] - key_positions[None, None, :]
    if not window:
        return distance >= 0
    return (distance >= 0) & (distance < window)


def _batched_dot(left, right, *, contract_last):
    axes = ((2,), (2,)) if contract_last else ((2,), (1,))
    return lax.dot_general(left, right, (axes, ((0,), (0,))), preferred_element_type=jnp.float32)
