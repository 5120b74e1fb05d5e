"""DEV. Logits under a request's limits: allowed ids, bad words, bias, min_tokens, penalties.

Per row and traced, like all of sampling. Rows that are not seated pass through with every bit, and
a step without seated rows does none of this. Knows nothing of temperature or random numbers.
"""

import jax
import jax.numpy as jnp
from jax import lax

from jaxinfer.config.step_plan import PROMPT_FLAG
from jaxinfer.sampling.logits import EXCLUDED, SamplingRows
from jaxinfer.sampling.slot_state import Ahead, LoopState, state_of_rows
from pallas_kernels.rounding import rounded

_LARGEST = jnp.finfo(jnp.float32).max


def limit_logits(
    logits: jax.Array,
    rows: SamplingRows,
    positions: jax.Array,
    state: LoopState,
    slots: jax.Array,
    ahead: Ahead | None = None,
) -> jax.Array:
    """Logits of seated rows, limited; tokens that may not be drawn at -inf.

    Order: allowed ids → bad words → bias → min_tokens → repetition, frequency, presence penalty.
    A ban that would leave a row nothing to draw is passed over, so that something can always be
    drawn and never a token that is not allowed: allowed ids win over bad words, and both over
    min_tokens.

    Args:
        logits: [W, V] f32 – raw.
        rows: how each row draws; `seated` says whose slot holds its request's limits.
        positions: [W] i32 – position that the drawn token will take.
        state: limits and counts by slot.
        slots: [W] i32 – slot of each row; those past the end are never seated.
        ahead: drafts that each row supposes to be drawn before its token.

    Returns:
        [W, V] f32.
    """
    with jax.named_scope("limits"):
        return lax.cond(
            jnp.any(rows.seated > 0),
            _limited,
            _unlimited,
            *(logits, rows, positions, state, slots, ahead),
        )


def _unlimited(logits: jax.Array, *_: object) -> jax.Array:
    return logits


def _limited(
    logits: jax.Array,
    rows: SamplingRows,
    positions: jax.Array,
    state: LoopState,
    slots: jax.Array,
    ahead: Ahead | None,
) -> jax.Array:
    mine = state_of_rows(state, slots, ahead)
    vocab_size, each = logits.shape[-1], jnp.arange(slots.shape[0])[:, None]
    is_good = jnp.ones(logits.shape, bool)
    is_good = is_good.at[each, _completing_tokens(mine, vocab_size)].set(False, mode="drop")
    is_early_end = _as_flags(mine.ends, vocab_size) & (positions < rows.first_end)[:, None]
    # A number a token, in the order of the limits: what has the highest is kept, so something is.
    merit = jnp.where(_as_flags(mine.allowed, vocab_size), 4, 0)
    merit = merit + jnp.where(is_good, 2, 0) + jnp.where(is_early_end, 0, 1)
    is_kept = merit == jnp.max(merit, axis=-1, keepdims=True)
    biased = logits.at[each, mine.bias_ids].add(mine.bias_values, mode="drop")
    limited = jnp.where(is_kept, _penalized(biased, mine.seen, rows), EXCLUDED)
    return jnp.where(rows.seated[:, None] > 0, limited, logits)


def _as_flags(words: jax.Array, size: int) -> jax.Array:
    """Bits to booleans: [W, ceil(size / 32)] u32 → [W, size].

    Example: words 0b101 and 0b1 with size 33 flag tokens 0, 2 and 32.
    """
    bits = words[:, :, None] >> jnp.arange(32, dtype=jnp.uint32)[None, None, :] & jnp.uint32(1)
    return bits.reshape(words.shape[0], -1)[:, :size] > 0


def _completing_tokens(mine: LoopState, vocab_size: int) -> jax.Array:
    """The token that would complete each bad word, V for words that are not begun: [W, words] i32.

    Example: with recent [.. 5 8] the word [-1 .. -1 8 9] bans 9, [-1 .. 7 8 9] does not, and
    [-1 .. -1 -1 9] always bans 9.
    """
    starts, lasts = mine.bad_words[:, :, :-1], mine.bad_words[:, :, -1]
    fits = jnp.all((starts < 0) | (starts == mine.recent[:, None, :]), axis=-1)
    # V lies past the end and is dropped; a negative index would count from there.
    return jnp.where(fits & (lasts >= 0), lasts, vocab_size)


def _penalized(scores: jax.Array, seen: jax.Array, rows: SamplingRows) -> jax.Array:
    """Repetition for tokens of prompt and output; frequency and presence for the output's."""
    counts = (seen & (PROMPT_FLAG - 1)).astype(jnp.float32)
    repetition = jnp.where(seen != 0, rows.repetition_penalty[:, None], jnp.float32(1))
    penalized = jnp.where(scores > 0, scores / repetition, rounded(scores * repetition))
    penalized -= rounded(rows.frequency_penalty[:, None] * counts)
    penalized -= jnp.where(counts > 0, rows.presence_penalty[:, None], jnp.float32(0))
    # An extreme penalty must not make what it touches infinite: +inf is no number to draw from.
    return jnp.clip(penalized, -_LARGEST, _LARGEST)
