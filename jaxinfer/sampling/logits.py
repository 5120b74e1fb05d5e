"""DEV. Which tokens may be drawn: temperature, min-p, top-k and top-p as per-row arrays.

No setting is static: one program serves every combination. Knows nothing of random numbers.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax

from pallas_kernels.folded_sum import folded_sum

EXCLUDED = -jnp.inf
_KEY_PAST_BEST = np.uint32(0x80000001)  # the best token is at 0, which has the key before this one
NUM_CANDIDATES = 256  # best tokens a row, in order; top_k and top_p mostly end among them


@struct.dataclass
class SamplingRows:
    """How each row of a step draws its token. Padding holds zeros (greedy)."""

    temperature: jax.Array  # [B] f32, 0 is greedy
    top_k: jax.Array  # [B] i32, 0 is off
    top_p: jax.Array  # [B] f32, 1 is off
    min_p: jax.Array  # [B] f32, 0 is off
    seeds: jax.Array  # [B, 2] u32, low and high word of the request's seed
    sample_index: jax.Array  # [B] i32, which of n completions
    num_logprobs: jax.Array  # [B] i32, -1 for none
    repetition_penalty: jax.Array  # [B] f32, 1 is off
    presence_penalty: jax.Array  # [B] f32, 0 is off
    frequency_penalty: jax.Array  # [B] f32, 0 is off
    first_end: jax.Array  # [B] i32, first position where a token may end the request
    seated: jax.Array  # [B] i32, 1 where the slot's limits on the device are this request's


def log_softmax(logits: jax.Array) -> jax.Array:
    """Raw log-probabilities: [B, V] f32 → [B, V] f32, bits independent of B."""
    shifted = logits - jnp.max(logits, axis=-1, keepdims=True)
    return shifted - jnp.log(folded_sum(jnp.exp(shifted)))


def filter_logits(logits: jax.Array, rows: SamplingRows) -> jax.Array:
    """Logits divided by the temperature, tokens that may not be drawn at -inf.

    Order: temperature → min_p → top_k → top_p. Rows with temperature 0 come out undivided. Ties at
    a threshold stay in.

    Args:
        logits: [B, V] f32.
        rows: parameters of the B rows.

    Returns:
        [B, V] f32.
    """
    divisor = jnp.where(rows.temperature > 0, rows.temperature, jnp.float32(1))
    # Shifted first: a tiny temperature then sends all but the best towards -inf, never to NaN.
    best = jnp.max(logits, axis=-1, keepdims=True)
    scaled = (logits - best) / divisor[:, None]
    scaled = jnp.where(scaled < jnp.log(rows.min_p)[:, None], EXCLUDED, scaled)
    is_cut = jnp.any((rows.top_k > 0) | (rows.top_p < 1))
    return lax.cond(is_cut, _keep_likeliest, _keep_all, scaled, rows)


def _keep_all(scaled: jax.Array, rows: SamplingRows) -> jax.Array:
    return scaled


def _keep_likeliest(scaled: jax.Array, rows: SamplingRows) -> jax.Array:
    best = lax.top_k(scaled, min(NUM_CANDIDATES, scaled.shape[-1]))[0]
    scaled = _keep_top_k(scaled, best, rows.top_k)
    return _keep_top_p(scaled, best, rows.top_p)


def _keep_top_k(scaled: jax.Array, best: jax.Array, top_k: jax.Array) -> jax.Array:
    num_candidates, keys = best.shape[-1], _ordered_keys(scaled)
    guess = _candidate_key(best, top_k - 1)
    # Where the candidates reach that far the guess is right; where top_k is off, 0 is.
    low = jnp.where(top_k <= num_candidates, jnp.where(top_k > 0, guess, 0), 0)
    high = jnp.where(top_k <= num_candidates, low + 1, _KEY_PAST_BEST)
    wanted = jnp.minimum(top_k, scaled.shape[-1])

    def enough(threshold):
        return jnp.sum((keys >= threshold[:, None]).astype(jnp.int32), axis=-1) >= wanted

    return _above(scaled, _largest_that(enough, low, high, guess))


def _keep_top_p(scaled: jax.Array, best: jax.Array, top_p: jax.Array) -> jax.Array:
    keys, weights = _ordered_keys(scaled), jnp.exp(scaled)  # the best is at 0: weights in [0, 1]
    wanted = top_p * folded_sum(weights)[:, 0]
    # A product with ones above the diagonal is a cumulative sum that compiles at once.
    place = jnp.arange(best.shape[-1])
    upper = (place[:, None] <= place[None, :]).astype(jnp.float32)
    mass = jnp.dot(jnp.exp(best), upper, precision=lax.Precision.HIGHEST)
    guess = _candidate_key(best, jnp.sum((mass < wanted[:, None]).astype(jnp.int32), axis=-1))

    def enough(threshold):
        kept = jnp.where(keys >= threshold[:, None], weights, jnp.float32(0))
        return folded_sum(kept)[:, 0] >= wanted

    low = jnp.zeros(top_p.shape, jnp.uint32)
    high = jnp.where(top_p < 1, _KEY_PAST_BEST, low + 1)
    return _above(scaled, _largest_that(enough, low, high, guess))


def _candidate_key(best: jax.Array, place: jax.Array) -> jax.Array:
    inside = jnp.clip(place, 0, best.shape[-1] - 1)
    return _ordered_keys(jnp.take_along_axis(best, inside[:, None], axis=-1)[:, 0])


def _above(scaled: jax.Array, threshold: jax.Array) -> jax.Array:
    return jnp.where(_ordered_keys(scaled) >= threshold[:, None], scaled, EXCLUDED)


def _ordered_keys(values: jax.Array) -> jax.Array:
    """u32 keys in the order of the floats.

    Example: -1.0, -0.5, 0.5 have bits bf80.., bf00.., 3f00..; negative ones are inverted and
    positive ones get the top bit: 407f.., 40ff.., bf00..
    """
    bits = lax.bitcast_convert_type(values, jnp.uint32)
    return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))


def _largest_that(
    enough: Callable[[jax.Array], jax.Array], low: jax.Array, high: jax.Array, guess: jax.Array
) -> jax.Array:
    """The largest threshold a row for which `enough` holds: [B] u32.

    No sort: each pass over the tokens counts or sums. What holds for a threshold holds for every
    smaller one, so the result is the same whatever was guessed: where every guess is right it takes
    two passes (the guess holds, the next key does not), else up to 34.

    Args:
        low, high: [B] u32 – `enough` holds at low and not at high; rows one apart are done.
        guess: [B] u32 – tried first.
    """

    def narrowed(bounds):
        step, low, high = bounds
        middle = low + (high - low) // 2
        tried = jnp.where(step < 2, jnp.clip(guess + step, low + 1, high - 1), middle)
        tried = jnp.where(high - low > 1, tried, low)
        holds = enough(tried)
        return step + 1, jnp.where(holds, tried, low), jnp.where(holds, high, tried)

    def is_open(bounds):
        return jnp.any(bounds[2] - bounds[1] > 1)

    return lax.while_loop(is_open, narrowed, (jnp.uint32(0), low, high))[1]
