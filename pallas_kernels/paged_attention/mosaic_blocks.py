"""What the decode and the prefill kernel share: a block of keys from its pages, one softmax step.

The softmax runs in powers of two: scores are multiplied by log2(e) once.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.mosaic_compat import add_matmul, full, iota, load, matmul_transposed
from pallas_kernels.paged_attention.tiles import BLOCK_ROWS

MASKED = -1e30
# No peak lies below this, so that exp2(MASKED - peak) is 0 also where a row has seen no key yet.
LOWEST_PEAK = -1e29
LOG2_E = math.log2(math.e)
WGMMA = plgpu.Layout.WGMMA
WGMMA_ROWS = plgpu.Layout.WGMMA.reduce(1)
_ERASED_COLUMNS = 64  # at once: more would spill beside the weights and the sums


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShape:
    """Static sizes and options of a kernel's inner step.

    columns: of the output, that one warpgroup computes.
    """

    block_keys: int
    page_tokens: int
    head_dim: int
    columns: int
    scale: float
    window: int
    softcap: float
    interpret: bool

    @property
    def copies(self) -> int:
        """Copies that bring one block of keys: its pages, or one part of a page."""
        return max(1, self.block_keys // self.page_tokens)


class Softmax(NamedTuple):
    """A running softmax of BLOCK_ROWS query rows, in registers."""

    weighted: jax.Array  # [rows, columns] f32, sum of exp2(score - peak) · value
    peak: jax.Array  # [rows] f32, largest score so far, at least LOWEST_PEAK
    total: jax.Array  # [rows] f32, sum of exp2(score - peak)


def empty_softmax(shape: BlockShape) -> Softmax:
    """Before any key."""
    return Softmax(
        weighted=full((BLOCK_ROWS, shape.columns), 0.0, WGMMA, shape.interpret),
        peak=full((BLOCK_ROWS,), LOWEST_PEAK, WGMMA_ROWS, shape.interpret),
        total=full((BLOCK_ROWS,), 0.0, WGMMA_ROWS, shape.interpret),
    )


def block_range(start: Any, end: Any, shape: BlockShape) -> tuple[Any, Any]:
    """First and one past the last block of keys that queries from `start` on see, before `end`."""
    last = lax.div(end + (shape.block_keys - 1), jnp.int32(shape.block_keys))
    if not shape.window:
        return jnp.int32(0), last
    oldest = jnp.maximum(start - (shape.window - 1), 0)
    return lax.div(oldest, jnp.int32(shape.block_keys)), last


def fetch_block(
    pages_gmem: Any, table_gmem: Any, smem: Any, ready: Any, place: tuple, shape: BlockShape
) -> None:
    """Starts the copies of one block of keys (or values); `ready` gets `shape.copies` arrivals.

    `place` is (row, kv head, block, last page in use): a block may end past the last page, and then
    that page is copied again, since the table holds nothing that may be read there.

    Example: pages of 16 tokens, blocks of 64: block 2 is columns 8 to 11 of the table; pages of
    256: block 2 is the third quarter of column 0.
    """
    row, head, block, last_page = place
    if shape.page_tokens > shape.block_keys:
        parts = shape.page_tokens // shape.block_keys
        page = table_gmem[row, lax.div(block, jnp.int32(parts))]
        first = lax.rem(block, jnp.int32(parts)) * shape.block_keys
        part = pages_gmem.at[page, head, pl.ds(first, shape.block_keys)]
        plgpu.copy_gmem_to_smem(part, smem, ready)
        return
    for copy in range(shape.copies):
        page = table_gmem[row, jnp.minimum(block * shape.copies + copy, last_page)]
        target = smem.at[pl.ds(copy * shape.page_tokens, shape.page_tokens)]
        plgpu.copy_gmem_to_smem(pages_gmem.at[page, head], target, ready)


def last_page_of(end: Any, shape: BlockShape) -> Any:
    """The table's column that holds the position before `end`."""
    return lax.div(end - 1, jnp.int32(shape.page_tokens))


def block_products(
    q_smem: Any, k_smem: Any, shape: BlockShape, meanwhile: Callable[[], None] = lambda: None
) -> jax.Array:
    """Products of the query rows with a block of keys: [rows, keys] f32."""
    return matmul_transposed(q_smem, k_smem, shape.interpret, meanwhile=meanwhile)


def capped_scores(scores: jax.Array, shape: BlockShape) -> jax.Array:
    """Scaled and capped scores in units of log2(e): [rows, keys] f32."""
    if not shape.softcap:
        return scores * jnp.float32(shape.scale * LOG2_E)
    # tanh(x) = 1 - 2 / (1 + exp(2x)); the hardware's own approximation is too coarse here.
    double = jnp.exp2(scores * jnp.float32(2 * LOG2_E * shape.scale / shape.softcap))
    tanh = jnp.float32(1) - jnp.float32(2) / (jnp.float32(1) + double)
    return tanh * jnp.float32(shape.softcap * LOG2_E)


def masked_scores(
    scores: jax.Array, first_key: Any, end: Any, query: Any, shape: BlockShape
) -> jax.Array:
    """The scores with MASKED for what a query must not see.

    Args:
        first_key: position of the block's first key.
        end: no key is there from this position on.
        query: position of each row's query, a scalar or [rows, keys] i32.
    """
    keys = iota(scores.shape, 1, WGMMA, shape.interpret) + first_key
    visible = keys <= jnp.minimum(query, end - 1)
    if shape.window:
        visible &= keys > query - shape.window
    return jnp.where(visible, scores, jnp.float32(MASKED))


def add_block(
    softmax: Softmax,
    scores: jax.Array,
    v_smem: Any,
    wait: Callable[[jax.Array], jax.Array],
    shape: BlockShape,
) -> Softmax:
    """The softmax with one more block.

    `wait` takes the weights and gives what the block is multiplied by, once its values are there.
    """
    peak = jnp.maximum(softmax.peak, jnp.max(scores, axis=1))
    fade = jnp.exp2(softmax.peak - peak)
    weights = jnp.exp2(scores - lax.broadcast_in_dim(peak, scores.shape, [0]))
    total = softmax.total * fade + jnp.sum(weights, axis=1)
    faded = softmax.weighted * lax.broadcast_in_dim(fade, softmax.weighted.shape, [0])
    factors = wait(weights).astype(jnp.bfloat16)
    weighted = add_matmul(faded, factors, v_smem, shape.interpret)
    return Softmax(weighted=weighted, peak=peak, total=total)


def erase_unseen(v_smem: Any, first_key: Any, start: Any, end: Any, shape: BlockShape) -> None:
    """Zeros in place of values that no query from `start` on sees: they may be anything, also NaN.

    From position `end` on nothing is there; behind the window of the first query a page may be
    given up. A weight of 0 would not do: 0 · NaN is NaN.
    """
    has_unseen = first_key + shape.block_keys > end
    if shape.window:
        has_unseen |= first_key <= start - shape.window

    @pl.when(has_unseen)
    def _erase() -> None:
        columns = range(0, v_smem.shape[1], _ERASED_COLUMNS)
        for first, column in itertools.product(range(0, shape.block_keys, BLOCK_ROWS), columns):
            part = v_smem.at[pl.ds(first, BLOCK_ROWS), pl.ds(column, _ERASED_COLUMNS)]
            values = load(part, WGMMA, shape.interpret)
            positions = iota(values.shape, 0, WGMMA, shape.interpret) + (first_key + first)
            held = positions < end
            if shape.window:
                held &= positions > start - shape.window
            part[...] = jnp.where(held, values, jnp.bfloat16(0))
        plgpu.commit_smem()


def sunk_softmax(softmax: Softmax, sink: Any) -> Softmax:
    """The softmax with a score that no value goes with.

    Args:
        sink: in units of log2(e), a scalar or [rows] f32.
    """
    peak = jnp.maximum(softmax.peak, sink)
    fade = jnp.exp2(softmax.peak - peak)
    faded = softmax.weighted * lax.broadcast_in_dim(fade, softmax.weighted.shape, [0])
    return Softmax(weighted=faded, peak=peak, total=softmax.total * fade + jnp.exp2(sink - peak))


def normalized(softmax: Softmax) -> jax.Array:
    """The attention output [rows, columns] f32; 0 for a row that saw no key."""
    total = jnp.where(softmax.total > 0, softmax.total, jnp.float32(1))
    shape = softmax.weighted.shape
    return softmax.weighted * lax.broadcast_in_dim(jnp.float32(1) / total, shape, [0])
