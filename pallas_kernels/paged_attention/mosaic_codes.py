"""Quantized pages on Mosaic GPU: a warpgroup of its own brings codes and widens them to bfloat16.

The tensor cores read bfloat16 from shared memory, so a block of codes goes

    pages → codes in shared memory → registers → bfloat16 in shared memory → product
          copied `code_stages` ahead          `stages` blocks, each given back by its readers

Codes of both kinds are exact in bfloat16. Their scales never touch keys and values: those of keys
go on the scores, those of values on the softmax weights (int8, one a token) or on the result (fp8,
one a head). A side (keys or values) whose pages are floats is copied to where it is read, as ever.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.mosaic_compat import load, tiled_smem
from pallas_kernels.paged_attention.mosaic_blocks import (
    WGMMA,
    WGMMA_ROWS,
    BlockShape,
    Softmax,
    fetch_block,
)
from pallas_kernels.paged_attention.pages import (
    HeadScaledPages,
    Pages,
    TokenScaledPages,
    code_array,
)
from pallas_kernels.paged_attention.tiles import BLOCK_ROWS, DecodeTiles, PrefillTiles

FLOATS, INT8, FP8 = "floats", "int8", "fp8"
_CODES = {INT8: jnp.int8, FP8: jnp.float8_e4m3fn}
_CODE_LAYOUT = plgpu.Layout.WGMMA_UPCAST_2X  # four codes side by side in a register
_KEY_COLUMNS = WGMMA.reduce(0)
_MAX_COLUMNS = 128  # of codes, in registers at once


class Side(NamedTuple):
    """Keys or values in one program: where they come from and where they are read.

    The fields from `codes` on are empty where pages are floats; the last two but for int8.
    """

    blocks: Any  # SMEM [stages, keys, D] bf16, what the tensor cores read
    ready: Any  # barriers [stages]: a block is there
    is_read: Any  # barriers [stages]: all readers are done with it; None where the other side's do
    pages: Any = None  # GMEM [P, K, S, D]
    page_scales: Any = None  # GMEM [P, K, S] bf16 or [K] f32
    codes: Any = None  # SMEM [code_stages, keys, D]
    arrived: Any = None  # barriers [code_stages]: codes (and scales) are copied
    copied_scales: Any = None  # SMEM [code_stages, keys] bf16
    scales: Any = None  # SMEM [stages, keys] f32


def kind_of(pages: Pages) -> str:
    """ "floats", "int8" or "fp8"."""
    if isinstance(pages, TokenScaledPages):
        return INT8
    return FP8 if isinstance(pages, HeadScaledPages) else FLOATS


def page_arrays(k_pages: Pages, v_pages: Pages) -> tuple[list[jax.Array], list[jax.Array]]:
    """The arrays [P, K, S, D] of both sides, and the scales of those that have some."""
    both = (k_pages, v_pages)
    return [code_array(pages) for pages in both], [
        pages.scales for pages in both if not isinstance(pages, jax.Array)
    ]


def code_scratch(
    kinds: tuple[str, str], head_dim: int, shape: BlockShape, tiles: DecodeTiles | PrefillTiles
) -> list[list[Any]]:
    """What codes need beside the blocks: [codes, arrived] of each side, empty for floats, and last
    the scales of both as copied and as read. Arrays take whole KiB: few of them are better."""
    keys, scratch = shape.block_keys, []
    for kind in kinds:
        parts: list[Any] = []
        if kind != FLOATS:
            copies = shape.copies * (2 if kind == INT8 else 1)
            parts.append(tiled_smem(tiles.code_stages, keys, head_dim, dtype=_CODES[kind]))
            parts.append(plgpu.Barrier(num_arrivals=copies, num_barriers=tiles.code_stages))
        scratch.append(parts)
    scales: list[Any] = []
    if INT8 in kinds:
        scales.append(plgpu.SMEM((len(kinds), tiles.code_stages, keys), jnp.bfloat16))
        scales.append(plgpu.SMEM((len(kinds), tiles.stages, keys), jnp.float32))
    return [*scratch, scales]


def ready_barriers(
    kinds: tuple[str, str], shape: BlockShape, tiles: DecodeTiles | PrefillTiles
) -> list[Any]:
    """For each side, barriers that tell when a block is there: copied, or widened."""
    arrivals = [shape.copies if kind == FLOATS else 1 for kind in kinds]
    return [plgpu.Barrier(num_arrivals=one, num_barriers=tiles.stages) for one in arrivals]


def make_sides(
    arrays: list[Any],
    scales: list[Any],
    pipelines: list[Side],
    scratch: list[list[Any]],
    kinds: tuple[str, str],
) -> tuple[Side, Side]:
    """Both sides of a program from its refs.

    Args:
        arrays: of pages. scales: of the sides that have some. pipelines: `blocks`, `ready` and
            `is_read` of both. scratch: as `code_scratch` says.
    """
    left, sides = list(scales), []
    for number, (pages, side, kind) in enumerate(zip(arrays, pipelines, kinds, strict=True)):
        side = side._replace(pages=pages)
        if kind != FLOATS:
            codes, arrived = scratch[number]
            side = side._replace(codes=codes, arrived=arrived, page_scales=left.pop(0))
        if kind == INT8:
            copied, read = (ref.at[number] for ref in scratch[-1])
            side = side._replace(copied_scales=copied, scales=read)
        sides.append(side)
    return sides[0], sides[1]


def widen_blocks(sides: tuple[Side, Side], table_gmem: Any, place: tuple, span: tuple, shape: Any):
    """Brings block after block of both sides: the copying warpgroup's whole work.

    Args:
        place: (row, kv head, last page in use). span: first and one past the last block.
    """
    row, head, last_page = place
    first, last = span
    coded = [side for side in sides if side.codes is not None]
    code_stages = coded[0].codes.shape[0]

    def copy_codes(block: Any) -> None:
        where = (row, head, block, last_page)
        buffer = lax.rem(block - first, jnp.int32(code_stages))
        for side in coded:
            arrived = side.arrived.at[buffer]
            fetch_block(side.pages, table_gmem, side.codes.at[buffer], arrived, where, shape)
            if side.scales is not None:
                target = side.copied_scales.at[buffer]
                fetch_block(side.page_scales, table_gmem, target, arrived, where, shape)

    for ahead in range(code_stages):
        pl.when(first + ahead < last)(lambda ahead=ahead: copy_codes(first + ahead))

    @pl.loop(first, last)
    def _bring(block: Any) -> None:
        code_buffer = lax.rem(block - first, jnp.int32(code_stages))
        for side in sides:
            stages = side.blocks.shape[0]
            buffer = lax.rem(block - first, jnp.int32(stages))
            if side.is_read is not None:
                free = side.is_read.at[buffer]
                pl.when(block - first >= stages)(lambda free=free: plgpu.barrier_wait(free))
            if side.codes is None:
                where, ready = (row, head, block, last_page), side.ready.at[buffer]
                fetch_block(side.pages, table_gmem, side.blocks.at[buffer], ready, where, shape)
            else:
                plgpu.barrier_wait(side.arrived.at[code_buffer])
                _widen(side, buffer, code_buffer, shape)
                plgpu.barrier_arrive(side.ready.at[buffer])
        pl.when(block + code_stages < last)(lambda: copy_codes(block + code_stages))


def _widen(side: Side, buffer: Any, code_buffer: Any, shape: BlockShape) -> None:
    """One block of codes as bfloat16, and its scales as float32, where their readers look."""
    columns = min(shape.head_dim, _MAX_COLUMNS)
    for first in range(0, shape.block_keys, BLOCK_ROWS):
        rows = pl.ds(first, BLOCK_ROWS)
        for column in range(0, shape.head_dim, columns):
            part = (rows, pl.ds(column, columns))
            codes = load(side.codes.at[(code_buffer, *part)], _CODE_LAYOUT, shape.interpret)
            side.blocks.at[(buffer, *part)][...] = _widened(codes)
        if side.scales is not None:
            scales = load(side.copied_scales.at[code_buffer, rows], WGMMA_ROWS, shape.interpret)
            side.scales.at[buffer, rows][...] = scales.astype(jnp.float32)
    plgpu.commit_smem()  # also: all threads have read the codes, which may be overwritten


def _widened(codes: jax.Array) -> jax.Array:
    if codes.dtype == jnp.int8:
        return codes.astype(jnp.bfloat16)
    # The hardware has no direct way; all of these hold the code exactly.
    return codes.astype(jnp.float16).astype(jnp.float32).astype(jnp.bfloat16)


def head_factor(side: Side, head: Any) -> Any:
    """The fixed scale of a kv head; None where it has none."""
    return side.page_scales[head] if side.codes is not None and side.scales is None else None


def scaled_scores(scores: jax.Array, side: Side, buffer: Any, factor: Any, shape: Any) -> jax.Array:
    """Products of queries with a block of codes as products with its keys: [rows, keys] f32.

    factor: the keys' `head_factor`.
    """
    if factor is not None:
        return scores * factor
    if side.scales is None:
        return scores
    factors = load(side.scales.at[buffer], _KEY_COLUMNS, shape.interpret)
    return scores * lax.broadcast_in_dim(factors, scores.shape, [1])


def scaled_weights(weights: jax.Array, side: Side, buffer: Any, shape: BlockShape) -> jax.Array:
    """Softmax weights for a block of codes in place of its values: [rows, keys] f32.

    A weight of 0 stays 0: the scale of a position that nobody has written may be NaN.
    """
    if side.scales is None:
        return weights
    factors = load(side.scales.at[buffer], _KEY_COLUMNS, shape.interpret)
    product = weights * lax.broadcast_in_dim(factors, weights.shape, [1])
    return jnp.where(weights == 0, jnp.float32(0), product)


def scaled_result(softmax: Softmax, factor: Any) -> Softmax:
    """A softmax over codes as one over values. factor: the values' `head_factor`."""
    if factor is None:
        return softmax
    return softmax._replace(weighted=softmax.weighted * factor)
