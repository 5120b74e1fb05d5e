"""DEV. Which tokens may be drawn: temperature, min-p, top-k and top-p as per-row arrays.

No setting is static: one program serves every combination. Knows nothing of random numbers.
"""

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
    """Top-k, then top-p: each keeps the fewest likeliest tokens whose weights reach a goal.

    For top-k a token weighs one and the goal is k; for top-p it weighs its probability. One loop of
    up to two rounds, so that both are compiled once.
    """
    vocab_size = scaled.shape[-1]
    best = lax.top_k(scaled, min(NUM_CANDIDATES, vocab_size))[0]

    def keep(turn, scaled):
        by_count = turn == 0
        weights, best_weights = (
            jnp.where(by_count, jnp.float32(1), jnp.exp(values)) for values in (scaled, best)
        )
        mass = rows.top_p * folded_sum(weights)[:, 0]
        goal = jnp.where(by_count, rows.top_k.astype(jnp.float32), mass)
        is_off = jnp.where(
            by_count, (rows.top_k <= 0) | (rows.top_k >= vocab_size), rows.top_p >= 1
        )
        guess = _guess_threshold(best, best_weights, goal)
        threshold = _find_threshold(scaled, weights, goal, guess, is_off)
        return jnp.where(_ordered_keys(scaled) >= threshold[:, None], scaled, EXCLUDED)

    first = jnp.where(jnp.any(rows.top_k > 0), 0, 1)
    return lax.fori_loop(first, jnp.where(jnp.any(rows.top_p < 1), 2, 1), keep, scaled)


def _guess_threshold(best: jax.Array, weights: jax.Array, goal: jax.Array) -> jax.Array:
    """The key of the candidate with which the candidates' weights reach the goal: [B] u32.

    A product with ones above the diagonal is a cumulative sum, and compiles in no time.
    """
    place = jnp.arange(best.shape[-1])
    upper = (place[:, None] <= place[None, :]).astype(jnp.float32)
    sums = jnp.dot(weights, upper, precision=lax.Precision.HIGHEST)
    # The likeliest one at which it is reached, -inf where that lies beyond them.
    reached = jnp.where(sums >= goal[:, None], best, EXCLUDED)
    return _ordered_keys(jnp.max(reached, axis=-1))


def _ordered_keys(values: jax.Array) -> jax.Array:
    """u32 keys in the order of the floats.

    Example: -1.0, -0.5, 0.5 have bits bf80.., bf00.., 3f00..; negative ones are inverted and
    positive ones get the top bit: 407f.., 40ff.., bf00..
    """
    bits = lax.bitcast_convert_type(values, jnp.uint32)
    return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))


def _find_threshold(
    scaled: jax.Array, weights: jax.Array, goal: jax.Array, guess: jax.Array, is_off: jax.Array
) -> jax.Array:
    """The largest key a row from which on the weights reach the goal: [B] u32; 0 where it is off.

    No sort but passes over the tokens: what reaches the goal from a key does so from every smaller
    one. The result is the same whatever was guessed. Where every guess is right it takes two passes
    (from the guess on they reach it, from the next key on they do not), else up to 34.
    """
    keys = _ordered_keys(scaled)

    def narrow(bounds):
        step, low, high = bounds
        middle = low + (high - low) // 2
        tried = jnp.where(step < 2, jnp.clip(guess + step, low + 1, high - 1), middle)
        kept = jnp.where(keys >= tried[:, None], weights, jnp.float32(0))
        reaches = folded_sum(kept)[:, 0] >= goal
        is_open = high - low > 1
        return step + 1, jnp.where(is_open & reaches, tried, low), jnp.where(reaches, high, tried)

    def is_unsettled(bounds):
        return jnp.any(bounds[2] - bounds[1] > 1)

    low = jnp.zeros(goal.shape, jnp.uint32)
    high = jnp.where(is_off, low + 1, _KEY_PAST_BEST)
    return lax.while_loop(is_unsettled, narrow, (jnp.uint32(0), low, high))[1]
