"""DEV. From logits to tokens: greedy or by Gumbel-max, with log-probabilities, packed for the host.

Random numbers depend on (seed, sample index, position) alone: no stream, nothing per slot.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from jaxinfer.config.sampling_params import MAX_LOGPROBS
from jaxinfer.sampling.logits import SamplingRows, filter_logits, log_softmax

PACKED_COLUMNS = 3 + 2 * MAX_LOGPROBS  # token, finite, logprob, best ids, best logprobs


@struct.dataclass
class Drawn:
    """What came out for each row."""

    tokens: jax.Array  # [B] i32
    logprobs: jax.Array  # [B] f32, raw log-probability of the token; 0 where none was asked
    finite: jax.Array  # [B] i32, 0 where the logits held NaN or +Inf
    best_ids: jax.Array  # [B, 20] i32
    best_logprobs: jax.Array  # [B, 20] f32


def draw(logits: jax.Array, rows: SamplingRows, positions: jax.Array) -> Drawn:
    """Draws one token a row.

    Args:
        logits: [B, V] f32 – raw.
        rows: how each row draws.
        positions: [B] i32 – position that the drawn token will take; part of the random key.

    Returns:
        tokens and, for rows that asked, raw log-probabilities.
    """
    with jax.named_scope("draw"):
        # Not from the maximum: a CPU's passes over NaN once a row is long.
        finite = jnp.min(jnp.isfinite(logits).astype(jnp.int32), axis=-1)
        greedy = first_largest(logits)
        random = lax.cond(
            jnp.any(rows.temperature > 0), _draw_random, _no_draw, logits, rows, positions
        )
        tokens = jnp.where(rows.temperature > 0, random, greedy)
        chosen, best_ids, best_logprobs = lax.cond(
            jnp.any(rows.num_logprobs >= 0), _logprobs, _no_logprobs, logits, tokens
        )
        return Drawn(
            tokens=tokens,
            logprobs=chosen,
            finite=finite,
            best_ids=best_ids,
            best_logprobs=best_logprobs,
        )


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
    floats = [
        lax.bitcast_convert_type(drawn.logprobs, jnp.int32)[:, None],
        lax.bitcast_convert_type(drawn.best_logprobs, jnp.int32),
    ]
    return jnp.concatenate(
        [drawn.tokens[:, None], drawn.finite[:, None], floats[0], drawn.best_ids, floats[1]],
        axis=1,
    )


def _draw_random(logits: jax.Array, rows: SamplingRows, positions: jax.Array) -> jax.Array:
    """argmax(filtered + Gumbel noise) has the law of softmax(filtered) (Gumbel 1954)."""
    filtered = filter_logits(logits, rows)
    noise = jax.vmap(_gumbel, in_axes=(0, 0, 0, None))(
        rows.seeds, rows.sample_index, positions, logits.shape[-1]
    )
    return first_largest(filtered + noise)


def _gumbel(seed: jax.Array, sample_index: jax.Array, position: jax.Array, size: int) -> jax.Array:
    key = jax.random.wrap_key_data(seed, impl="threefry2x32")
    key = jax.random.fold_in(jax.random.fold_in(key, sample_index), position)
    bits = jax.random.bits(key, (size,), jnp.uint32)
    # (k + 1/2) / 2^23 for k < 2^23 is exact and lies inside (0, 1): no rounding to disagree about.
    uniform = ((bits >> 9).astype(jnp.float32) + jnp.float32(0.5)) * jnp.float32(2.0**-23)
    return -jnp.log(-jnp.log(uniform))


def _no_draw(logits: jax.Array, rows: SamplingRows, positions: jax.Array) -> jax.Array:
    return jnp.zeros(logits.shape[:1], jnp.int32)


def _logprobs(logits: jax.Array, tokens: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    every = log_softmax(logits)
    chosen = jnp.take_along_axis(every, tokens[:, None], axis=-1)[:, 0]
    best, ids = lax.top_k(every, min(MAX_LOGPROBS, every.shape[-1]))
    missing = ((0, 0), (0, MAX_LOGPROBS - best.shape[-1]))
    return chosen, jnp.pad(ids, missing), jnp.pad(best, missing, constant_values=-jnp.inf)


def _no_logprobs(logits: jax.Array, tokens: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    rows = logits.shape[0]
    return (
        jnp.zeros((rows,), jnp.float32),
        jnp.zeros((rows, MAX_LOGPROBS), jnp.int32),
        jnp.zeros((rows, MAX_LOGPROBS), jnp.float32),
    )
