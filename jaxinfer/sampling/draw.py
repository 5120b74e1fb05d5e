"""DEV. From logits to tokens: greedy or by Gumbel-max, with log-probabilities, packed for the host.

Random numbers depend on (seed, sample index, position) alone: no stream, nothing per slot.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from jaxinfer.config.sampling_params import MAX_LOGPROBS
from jaxinfer.sampling.limits import limit_logits
from jaxinfer.sampling.logits import SamplingRows, filter_logits, log_softmax
from jaxinfer.sampling.noise import gumbel_noise
from jaxinfer.sampling.slot_state import Ahead, LoopState

# token, finite, logprob, rank, best ids, best logprobs
PACKED_COLUMNS = 4 + 2 * MAX_LOGPROBS

# Rows that are drawn at once on a GPU, and the most logits that they have. What drawing holds
# beside all logits is six times these; rows one after another would leave the GPU idle.
BLOCK_ROWS, BLOCK_LOGITS = 16, 1 << 22
FEW_ROWS = 32  # of a step: half a block, or drawing would hold more than twice its logits

LogprobsMode = Literal["raw", "processed"]


@struct.dataclass
class Drawn:
    """What came out for each row; rows that asked for no log-probabilities hold zeros there."""

    tokens: jax.Array  # [B] i32
    finite: jax.Array  # [B] i32, 0 where the raw logits held NaN or Inf
    logprobs: jax.Array  # [B] f32, log-probability of the token
    ranks: jax.Array  # [B] i32, 1 + number of tokens that are likelier
    best_ids: jax.Array  # [B, 20] i32
    best_logprobs: jax.Array  # [B, 20] f32


def draw(
    logits: jax.Array,
    rows: SamplingRows,
    positions: jax.Array,
    state: LoopState,
    slots: jax.Array,
    *,
    logprobs_mode: LogprobsMode = "raw",
    ahead: Ahead | None = None,
) -> Drawn:
    """Draws one token a row.

    Args:
        logits: [B, V] f32 – raw.
        rows: how each row draws.
        positions: [B] i32 – position that the drawn token will take; part of the random key.
        state: limits and counts by slot; read only.
        slots: [B] i32 – slot of each row; one past the end for a row that is nobody's.
        logprobs_mode: "raw" reports the log-softmax of `logits`; "processed" that of what the
            token was drawn from: after the limits and, where the temperature is above 0, after
            temperature and filters.
        ahead: drafts that each row supposes to be drawn before its token.

    Returns:
        tokens and, for rows that asked, log-probabilities.
    """
    draw_rows = functools.partial(_draw_rows, state, logprobs_mode)
    operands = (logits, rows, positions, slots, ahead)
    with jax.named_scope("draw"):
        if logits.shape[0] <= block_rows(*logits.shape):
            return draw_rows(*operands)
        in_blocks = functools.partial(draw_in_blocks, draw_rows)
        return lax.platform_dependent(*operands, cpu=draw_rows, default=in_blocks)


def block_rows(num_rows: int, vocab_size: int) -> int:
    """Rows of a block. Example: of 64 rows 16 with 128,256 logits, 8 with 262,208; of 32 half."""
    size = BLOCK_ROWS if BLOCK_ROWS * vocab_size <= BLOCK_LOGITS else BLOCK_ROWS // 2
    return size if num_rows > FEW_ROWS else size // 2


def draw_in_blocks(draw_rows: Callable[..., Drawn], *operands: Any) -> Drawn:
    """What `draw_rows(*operands)` gives, a block of rows after another, so that little is held.

    Where nobody draws at random, has limits or wants log-probabilities, all rows at once.

    Example: 40 rows are drawn from 0, from 16, and from 24 on: the last block is a whole one.

    Args:
        draw_rows: a function of logits, rows, positions, slots and drafts whose rows do not depend
            on each other.
        operands: those; at least `block_rows` of them.
    """
    logits, rows = operands[0], operands[1]
    num_rows, size = logits.shape[0], block_rows(*logits.shape)

    def add(number: Any, drawn: Drawn) -> Drawn:
        start = jnp.minimum(number * size, num_rows - size)
        block = jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, start, size), operands)
        return jax.tree.map(
            lambda whole, part: lax.dynamic_update_slice_in_dim(whole, part, start, 0),
            drawn,
            draw_rows(*block),
        )

    def in_blocks(_: jax.Array) -> Drawn:
        return lax.fori_loop(0, -(-num_rows // size), add, _greedy(logits))

    asked = (rows.temperature > 0) | (rows.seated > 0) | (rows.num_logprobs >= 0)
    return lax.cond(jnp.any(asked), in_blocks, _greedy, logits)


def _greedy(logits: jax.Array) -> Drawn:
    logprobs, ranks, best_ids, best_logprobs = _no_logprobs(logits, logits)
    return Drawn(
        tokens=first_largest(logits),
        finite=_are_finite(logits),
        logprobs=logprobs,
        ranks=ranks,
        best_ids=best_ids,
        best_logprobs=best_logprobs,
    )


def _draw_rows(
    state: LoopState,
    logprobs_mode: LogprobsMode,
    logits: jax.Array,
    rows: SamplingRows,
    positions: jax.Array,
    slots: jax.Array,
    ahead: Ahead | None,
) -> Drawn:
    finite = _are_finite(logits)
    is_plain = ~jnp.any((rows.temperature > 0) | (rows.seated > 0))
    if logprobs_mode == "raw":
        # The processed logits stay inside: handing them out of the choice would copy them.
        tokens = lax.cond(
            is_plain,
            lambda *operands: first_largest(operands[0]),
            lambda *operands: _draw_processed(*operands)[0],
            *(logits, rows, positions, state, slots, ahead),
        )
        reported = logits
    else:
        tokens, reported = lax.cond(
            is_plain,
            lambda *operands: (first_largest(operands[0]), operands[0]),
            _draw_processed,
            *(logits, rows, positions, state, slots, ahead),
        )
    return _with_logprobs(reported, tokens, finite, rows.num_logprobs >= 0)


def score(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """What `pack` gives for rows that draw `targets`: raw log-probabilities and ranks of them.

    Args:
        logits: [N, V] f32.
        targets: [N] i32.

    Returns:
        [N, PACKED_COLUMNS] i32.
    """
    with jax.named_scope("score"):
        asked = jnp.ones(targets.shape, bool)
        return pack(_with_logprobs(logits, targets, _are_finite(logits), asked))


def first_largest(values: jax.Array) -> jax.Array:
    """The lowest index of each row's largest value: [B, V] → [B] i32; any index where it is NaN.

    Two plain reductions: on a CPU they take a third of the time of `argmax` (bench/LOG.md).
    """
    size = values.shape[-1]
    index = jnp.arange(size, dtype=jnp.int32)[None, :]
    largest = jnp.max(values, axis=-1, keepdims=True)
    return jnp.minimum(jnp.min(jnp.where(values >= largest, index, size), axis=-1), size - 1)


def pack(drawn: Drawn) -> jax.Array:
    """One array for the one transfer: [B, PACKED_COLUMNS] i32 (`runner/staging.py` unpacks it)."""
    columns = [
        drawn.tokens[:, None],
        drawn.finite[:, None],
        lax.bitcast_convert_type(drawn.logprobs, jnp.int32)[:, None],
        drawn.ranks[:, None],
        drawn.best_ids,
        lax.bitcast_convert_type(drawn.best_logprobs, jnp.int32),
    ]
    return jnp.concatenate(columns, axis=1)


def _are_finite(logits: jax.Array) -> jax.Array:
    # Not from the maximum: a CPU's passes over NaN once a row is long.
    return jnp.min(jnp.isfinite(logits).astype(jnp.int32), axis=-1)


def _draw_processed(
    logits: jax.Array,
    rows: SamplingRows,
    positions: jax.Array,
    state: LoopState,
    slots: jax.Array,
    ahead: Ahead | None,
) -> tuple[jax.Array, jax.Array]:
    """Tokens, and the logits that they were drawn from."""
    limited = limit_logits(logits, rows, positions, state, slots, ahead)
    is_random = rows.temperature > 0
    random, filtered = lax.cond(
        jnp.any(is_random), _draw_random, _no_draw, limited, rows, positions
    )
    tokens = jnp.where(is_random, random, first_largest(limited))
    return tokens, jnp.where(is_random[:, None], filtered, limited)


def _draw_random(
    limited: jax.Array, rows: SamplingRows, positions: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """argmax(filtered + Gumbel noise) has the law of softmax(filtered) (Gumbel 1954)."""
    filtered = filter_logits(limited, rows)
    noise = gumbel_noise(rows.seeds, rows.sample_index, positions, limited.shape[-1])
    return first_largest(filtered + noise), filtered


def _no_draw(
    limited: jax.Array, rows: SamplingRows, positions: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return jnp.zeros(limited.shape[:1], jnp.int32), limited


def _with_logprobs(
    logits: jax.Array, tokens: jax.Array, finite: jax.Array, asked: jax.Array
) -> Drawn:
    logprobs, ranks, best_ids, best_logprobs = lax.cond(
        jnp.any(asked), _logprobs, _no_logprobs, logits, tokens
    )
    return Drawn(
        tokens=tokens,
        finite=finite,
        logprobs=jnp.where(asked, logprobs, jnp.float32(0)),
        ranks=jnp.where(asked, ranks, 0),
        best_ids=jnp.where(asked[:, None], best_ids, 0),
        best_logprobs=jnp.where(asked[:, None], best_logprobs, jnp.float32(0)),
    )


_Logprobs = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


def _logprobs(logits: jax.Array, tokens: jax.Array) -> _Logprobs:
    every = log_softmax(logits)
    chosen = jnp.take_along_axis(every, tokens[:, None], axis=-1, mode="clip")
    ranks = 1 + jnp.sum((every > chosen).astype(jnp.int32), axis=-1)
    best, ids = lax.top_k(every, min(MAX_LOGPROBS, every.shape[-1]))
    missing = ((0, 0), (0, MAX_LOGPROBS - best.shape[-1]))
    best = jnp.pad(best, missing, constant_values=-jnp.inf)
    return chosen[:, 0], ranks, jnp.pad(ids, missing), best


def _no_logprobs(logits: jax.Array, tokens: jax.Array) -> _Logprobs:
    rows = logits.shape[0]
    return (
        jnp.zeros((rows,), jnp.float32),
        jnp.zeros((rows,), jnp.int32),
        jnp.zeros((rows, MAX_LOGPROBS), jnp.int32),
        jnp.zeros((rows, MAX_LOGPROBS), jnp.float32),
    )
