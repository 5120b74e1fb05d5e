"""DEV. What the device keeps of each slot between steps: last tokens, counts, limits of requests.

Written whole by `seat` when a request that needs it gets its slot; steps then only add the tokens
they draw. A slot that was not seated holds an earlier request's leavings: of it, steps read the
last token alone (`SamplingRows.seated`). Knows nothing of logits.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from jaxinfer.config.step_plan import (
    BAD_WORD_ROWS,
    MAX_BAD_WORD_TOKENS,
    MAX_BIAS_IDS,
    RECENT_TOKENS,
)


@struct.dataclass
class LoopState:
    """What steps hand on to each other without the host; donated to every step."""

    recent: jax.Array  # [B, RECENT_TOKENS] i32, last tokens in order; the last has no KV yet
    seen: jax.Array  # [B, V] i32, times each token was generated; + PROMPT_FLAG if in the prompt
    allowed: jax.Array  # [B, ceil(V / 32)] u32, bit i % 32 of word i // 32: token i may be drawn
    ends: jax.Array  # [B, ceil(V / 32)] u32, likewise: tokens that end the request
    bias_ids: jax.Array  # [B, MAX_BIAS_IDS] i32, V where there is none
    bias_values: jax.Array  # [B, MAX_BIAS_IDS] f32
    bad_words: jax.Array  # [B, BAD_WORD_ROWS, MAX_BAD_WORD_TOKENS] i32, at the right, else -1


@struct.dataclass
class SeatRow:
    """The state of one slot, to be written over what is there."""

    slot: jax.Array  # [] i32
    recent: jax.Array  # [RECENT_TOKENS] i32
    seen: jax.Array  # [V] i32
    allowed: jax.Array  # [ceil(V / 32)] u32
    ends: jax.Array  # [ceil(V / 32)] u32
    bias_ids: jax.Array  # [MAX_BIAS_IDS] i32
    bias_values: jax.Array  # [MAX_BIAS_IDS] f32
    bad_words: jax.Array  # [BAD_WORD_ROWS, MAX_BAD_WORD_TOKENS] i32


@struct.dataclass
class Ahead:
    """Drafts that each row supposes to have been drawn before its own token."""

    tokens: jax.Array  # [W, J] i32
    counts: jax.Array  # [W] i32, how many of them


def abstract_loop_state(num_slots: int, vocab_size: int) -> LoopState:
    """Shapes of the state of `num_slots` slots."""
    return LoopState(**_shapes(vocab_size, (num_slots,)))


def abstract_seat_row(vocab_size: int) -> SeatRow:
    """Shapes of the state of one slot."""
    slot = jax.ShapeDtypeStruct((), jnp.int32)
    return SeatRow(slot=slot, **_shapes(vocab_size, ()))  # type: ignore[arg-type]


def init_loop_state(num_slots: int, vocab_size: int) -> LoopState:
    """Zeros: slots that nobody was seated in."""
    shapes = abstract_loop_state(num_slots, vocab_size)
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def seat(state: LoopState, row: SeatRow) -> LoopState:
    """The state with one slot overwritten.

    Donates: state.
    """
    return LoopState(
        **{
            name: lax.dynamic_update_index_in_dim(array, getattr(row, name), row.slot, 0)
            for name, array in vars(state).items()
        }
    )


def last_tokens(state: LoopState, slots: jax.Array) -> jax.Array:
    """The token of each row's slot that has no KV yet: [W] i32 → [W] i32.

    A slot past the end reads the last slot's.
    """
    return state.recent[:, -1].at[slots].get(mode="clip")


def take_tokens(
    state: LoopState, slots: jax.Array, tokens: jax.Array, counts: jax.Array | None = None
) -> LoopState:
    """The state after each row's slot got its drawn tokens.

    Args:
        slots: [W] i32 – no slot twice; one past the end takes nothing.
        tokens: [W] i32, or [W, Q] of which each row takes the first `counts` [W].
    """
    tokens = tokens if tokens.ndim == 2 else tokens[:, None]
    counts = jnp.ones(slots.shape, jnp.int32) if counts is None else counts
    before = state.recent.at[slots].get(mode="clip")
    # A count far below PROMPT_FLAG: adding to it leaves the flag as it is.
    taken = (jnp.arange(tokens.shape[1])[None, :] < counts[:, None]).astype(jnp.int32)
    return replace(
        state,
        recent=state.recent.at[slots].set(_appended(before, tokens, counts), mode="drop"),
        seen=state.seen.at[slots[:, None], tokens].add(taken, mode="drop"),
    )


def state_of_rows(state: LoopState, slots: jax.Array, ahead: Ahead | None) -> LoopState:
    """The state of each row's slot [W, ...], as it will be once the row's drafts were drawn."""
    mine = jax.tree.map(lambda leaf: leaf.at[slots].get(mode="clip"), state)
    if ahead is None:
        return mine
    return take_tokens(mine, jnp.arange(slots.shape[0]), ahead.tokens, ahead.counts)


def _appended(recent: jax.Array, tokens: jax.Array, counts: jax.Array) -> jax.Array:
    """The last RECENT_TOKENS of `recent` and the first `counts` of `tokens`, row by row.

    Example: recent [1 2 3], tokens [7 8 9], count 2 → columns 2 to 4 of [1 2 3 7 8 9]: [3 7 8].
    """
    joined = jnp.concatenate([recent, tokens], axis=1)
    columns = counts[:, None] + jnp.arange(recent.shape[1])[None, :]
    return jnp.take_along_axis(joined, columns, axis=1)


def _shapes(vocab_size: int, leading: tuple[int, ...]) -> dict[str, jax.Array]:
    words = -(-vocab_size // 32)
    shapes = {
        "recent": ((RECENT_TOKENS,), jnp.int32),
        "seen": ((vocab_size,), jnp.int32),
        "allowed": ((words,), jnp.uint32),
        "ends": ((words,), jnp.uint32),
        "bias_ids": ((MAX_BIAS_IDS,), jnp.int32),
        "bias_values": ((MAX_BIAS_IDS,), jnp.float32),
        "bad_words": ((BAD_WORD_ROWS, MAX_BAD_WORD_TOKENS), jnp.int32),
    }
    return {
        name: jax.ShapeDtypeStruct((*leading, *shape), dtype)  # type: ignore[misc]
        for name, (shape, dtype) in shapes.items()
    }
