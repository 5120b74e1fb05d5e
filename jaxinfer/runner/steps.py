"""DEV. The jitted entry points, as pure functions; `compile.py` is the only place that jits them.

Token positions of one row while a prompt of 150 tokens is prefilled with T = 64 and then decoded:

    |<- chunk 0 ->|<- chunk 1 ->|<- chunk 2 ->:.....|
    0            64           128          150
     committed: keys and values in pages   ^ the drawn token waits in the loop state;
                                             the next decode step writes its keys and values at 150

All steps run the same `forward` over pages; only the number of tokens a row differs. A row whose
last token waits at 150 is drafted three tokens, of which two are accepted:

    |<- committed ->|  150  |  151  |  152  |  153  |:....
                    | last    drafted  d.      d.   |      three draft steps, then one verify step
     committed: ....................................^ the next token waits for position 153
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxinfer.cache import PagedKV, copy_pages, read_pages, write_pages
from jaxinfer.config.geometry import Geometry
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.models.transformer import TokenRows, logits
from jaxinfer.runner.batch import DecodeBatch, PrefillBatch, VerifyBatch
from jaxinfer.runner.forwards import draft_logits, run_draft, run_model
from jaxinfer.sampling.accept import count_accepted
from jaxinfer.sampling.draw import PACKED_COLUMNS, block_rows, draw, pack, score
from jaxinfer.sampling.logits import SamplingRows
from jaxinfer.sampling.slot_state import (
    Ahead,
    LoopState,
    SeatRow,
    last_tokens,
    seat,
    take_tokens,
)
from pallas_kernels.quant_matmul.tiles import filled_rows

StepOutput = tuple[PagedKV, LoopState, jax.Array, jax.Array]


def prefill_step(
    params: Any,
    cache: PagedKV,
    state: LoopState,
    batch: PrefillBatch,
    config: ModelConfig,
    geometry: Geometry,
    draft: ModelConfig | None = None,
) -> StepOutput:
    """Runs R chunks of T tokens and draws a token for the rows that end their prompt.

    Returns:
        cache and state; [R, 44] i32 – what was drawn, packed (zeros where no row draws);
        [R, T, E] – hidden rows.

    Donates: cache and state.
    Cost: 2·R·T FLOPs a weight; the head runs only where a row ends its prompt.
    """
    rows = batch.rows
    hidden, cache = run_model(params, cache, rows, config, geometry, draft)
    last = jnp.maximum(rows.lengths - 1, 0)[:, None, None]
    ends = jnp.take_along_axis(hidden, last, axis=1)[:, 0]
    drawing = _Drawing(batch.slots, rows.starts + rows.lengths, batch.sampling)
    packed = lax.cond(
        jnp.any(batch.slots < geometry.num_slots),
        lambda: _draw_packed(params, ends, state, drawing, config, geometry),
        lambda: jnp.zeros((ends.shape[0], PACKED_COLUMNS), jnp.int32),
    )
    # A slot of B lies past the end: it takes no token.
    return cache, take_tokens(state, batch.slots, packed[:, 0]), packed, hidden


def decode_step(
    params: Any,
    cache: PagedKV,
    state: LoopState,
    batch: DecodeBatch,
    config: ModelConfig,
    geometry: Geometry,
    draft: ModelConfig | None = None,
) -> StepOutput:
    """Runs one token for each of up to W slots and draws the next.

    Returns:
        cache and state; [W, 44] i32 – what was drawn, packed; [W, 1, E] – hidden rows.

    Donates: cache and state.
    Cost: reads every weight once and the pages of the active rows.
    """
    # The slot of an empty row lies past the end: it reads the last slot and its write is dropped.
    rows = TokenRows(
        tokens=last_tokens(state, batch.slots)[:, None],
        starts=batch.positions,
        lengths=(batch.slots < geometry.num_slots).astype(jnp.int32),
        tables=batch.tables,
    )
    hidden, cache = run_model(params, cache, rows, config, geometry, draft)
    drawing = _Drawing(batch.slots, batch.positions + 1, batch.sampling)
    packed = _draw_packed(params, hidden[:, 0], state, drawing, config, geometry)
    return cache, take_tokens(state, batch.slots, packed[:, 0]), packed, hidden


def verify_step(
    params: Any,
    cache: PagedKV,
    state: LoopState,
    batch: VerifyBatch,
    config: ModelConfig,
    geometry: Geometry,
    draft: ModelConfig | None = None,
) -> StepOutput:
    """Runs the last token and J drafts of up to W slots in one pass and draws after each.

    The first num_accepted + 1 tokens drawn in a row count; keys and values of drafts that do not
    stand lie past the committed length, where the next step overwrites them.

    Returns:
        cache and state; [W, J + 1, 45] i32 – what was drawn, packed, with num_accepted as the last
        column; [W, J + 1, E] – hidden rows.

    Donates: cache and state.
    Cost: reads every weight once; 2·W·(J + 1) FLOPs a weight.
    """
    width, num_drafts = batch.drafts.shape
    each = num_drafts + 1
    rows = TokenRows(
        tokens=jnp.concatenate([last_tokens(state, batch.slots)[:, None], batch.drafts], axis=1),
        starts=batch.positions,
        lengths=jnp.where(batch.slots < geometry.num_slots, batch.num_drafts + 1, 0),
        tables=batch.tables,
    )
    hidden, cache = run_model(params, cache, rows, config, geometry, draft)
    place = jnp.tile(jnp.arange(each, dtype=jnp.int32), width)
    slots, sampling, drafts = jax.tree.map(
        lambda leaf: jnp.repeat(leaf, each, axis=0), (batch.slots, batch.sampling, batch.drafts)
    )
    positions = jnp.repeat(batch.positions, each) + place + 1
    drawing = _Drawing(slots, positions, sampling, Ahead(tokens=drafts, counts=place))
    flat = hidden.reshape(width * each, -1)
    packed = _draw_packed(params, flat, state, drawing, config, geometry)
    packed = packed.reshape(width, each, -1)
    accepted = count_accepted(packed[:, :, 0], batch.drafts, batch.num_drafts)
    state = take_tokens(state, batch.slots, packed[:, :, 0], accepted + 1)
    columns = jnp.broadcast_to(accepted[:, None, None], (width, each, 1))
    return cache, state, jnp.concatenate([packed, columns], axis=2), hidden


def draft_step(
    params: Any,
    cache: PagedKV,
    state: LoopState,
    drafts: jax.Array,
    place: jax.Array,
    batch: VerifyBatch,
    config: ModelConfig,
    geometry: Geometry,
    draft: ModelConfig,
) -> tuple[PagedKV, jax.Array]:
    """Drafts the token at one place after the last token of each of up to W slots.

    It is drawn as the model's token there will be drawn, limits and random numbers included, from
    the logits of what drafts: a draft stands where the two agree.

    Args:
        drafts: [W, J] i32 – those before `place` are drafted.
        place: [] i32 – 0 for the token after the last one.
        batch: of the verify step to come; rows draft while `place` is below their `num_drafts`.

    Returns:
        the cache; drafts with the one at `place`.

    Donates: cache.
    Cost: reads every weight of what drafts once.
    """
    before = lax.dynamic_index_in_dim(drafts, jnp.maximum(place - 1, 0), 1, keepdims=False)
    tokens = jnp.where(place == 0, last_tokens(state, batch.slots), before)
    drafting = (batch.slots < geometry.num_slots) & (place < batch.num_drafts)
    rows = TokenRows(
        tokens=tokens[:, None],
        starts=batch.positions + place,
        lengths=drafting.astype(jnp.int32),
        tables=batch.tables,
    )
    hidden, cache = run_draft(params["draft"], cache, rows, draft, geometry)
    scores = draft_logits(params["draft"], hidden[:, 0], draft, config.vocab_size)
    drawn = draw(
        scores,
        replace(batch.sampling, num_logprobs=jnp.full_like(batch.slots, -1)),
        batch.positions + place + 1,
        state,
        batch.slots,
        ahead=Ahead(tokens=drafts, counts=jnp.full_like(batch.slots, place)),
    )
    return cache, lax.dynamic_update_index_in_dim(drafts, drawn.tokens, place, 1)


def head_step(
    params: Any, hidden: jax.Array, targets: jax.Array, config: ModelConfig
) -> tuple[jax.Array, jax.Array]:
    """For callers that want more of hidden rows than a drawn token.

    Args:
        hidden: [rows, E].
        targets: [rows] i32 – the token that comes after each.

    Returns:
        [rows, V] f32 – logits; [rows, 44] i32 – what the targets scored, packed as a step's draw.
    """
    scores = logits(params, hidden, config)
    return scores, score(scores, targets)


def seat_step(state: LoopState, row: SeatRow) -> LoopState:
    """Writes what the device keeps of one request. Donates: state."""
    return seat(state, row)


def copy_step(
    cache: PagedKV, sources: jax.Array, targets: jax.Array, geometry: Geometry
) -> PagedKV:
    """Copies one page of each cache group. Donates: cache."""
    return copy_pages(cache, sources, targets, geometry.cache_groups)


def swap_out_step(cache: PagedKV, pages: jax.Array, geometry: Geometry) -> PagedKV:
    """The content of pages [groups, M], for the host."""
    return read_pages(cache, pages, geometry.cache_groups)


def swap_in_step(cache: PagedKV, pages: jax.Array, content: PagedKV, geometry: Geometry) -> PagedKV:
    """Writes what `swap_out_step` gave into pages [groups, M]. Donates: cache."""
    return write_pages(cache, pages, content, geometry.cache_groups)


class _Drawing(NamedTuple):
    slots: jax.Array  # [rows] i32
    positions: jax.Array  # [rows] i32, that the drawn tokens will take
    sampling: SamplingRows
    ahead: Ahead | None = None


def _draw_packed(
    params: Any,
    hidden: jax.Array,
    state: LoopState,
    drawing: _Drawing,
    config: ModelConfig,
    geometry: Geometry,
) -> jax.Array:
    num_rows = hidden.shape[0]
    # Else the head's product fills its rows up and cuts the logits: a copy, small for few rows.
    if geometry.fills_tiles and num_rows > block_rows(num_rows, config.vocab_size):
        missing = filled_rows(num_rows) - num_rows
        # By the last row again, which asks for nothing new: zeros would, for log-probabilities.
        hidden, drawing = jax.tree.map(
            lambda leaf: jnp.pad(leaf, [(0, missing)] + [(0, 0)] * (leaf.ndim - 1), mode="edge"),
            (hidden, drawing),
        )
    drawn = draw(
        logits(params, hidden, config),
        drawing.sampling,
        drawing.positions,
        state,
        drawing.slots,
        logprobs_mode=geometry.logprobs_mode,
        ahead=drawing.ahead,
    )
    return pack(drawn)[:num_rows]
