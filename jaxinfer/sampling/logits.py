"""DEV. Which tokens may be drawn: temperature, min-p, top-k and top-p as per-row arrays.

No setting is static: one program serves every combination. Knows nothing of random numbers.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from pallas_kernels.folded_sum import folded_sum

EXCLUDED = -jnp.inf
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
    scaled = _above(scaled, _top_k_threshold(scaled, best, rows.top_k))
    return _above(scaled, _top_p_threshold(scaled, best, rows.top_p))


def _above(scaled: jax.Array, threshold: jax.Array) -> jax.Array:
    return jnp.where(_ordered_keys(scaled) >= threshold[:, None], scaled, EXCLUDED)


def _top_k_threshold(scaled: jax.Array, best: jax.Array, top_k: jax.Array) -> jax.Array:
    """The key of each row's k-th best, 0 where top_k is off: [B] u32."""
    num_candidates = best.shape[-1]

    def look_up():
        place = jnp.clip(top_k, 1, num_candidates) - 1
        return _ordered_keys(jnp.take_along_axis(best, place[:, None], axis=-1)[:, 0])

    def search():
        keys = _ordered_keys(scaled)
        wanted = jnp.minimum(top_k, scaled.shape[-1])

        def enough(threshold):
            return jnp.sum((keys >= threshold[:, None]).astype(jnp.int32), axis=-1) >= wanted

        return _largest_that(enough, top_k.shape[0])

    threshold = lax.cond(jnp.any(top_k > num_candidates), search, look_up)
    return jnp.where(top_k > 0, threshold, jnp.uint32(0))


def _top_p_threshold(scaled: jax.Array, best: jax.Array, top_p: jax.Array) -> jax.Array:
    """The key down to which each row's mass reaches top_p, 0 where that is off: [B] u32.

    What is guessed from the candidates counts only if the mass of all tokens confirms it, so a
    row gets the same threshold whether or not its neighbours make the step search for theirs.
    """
    keys, weights = _ordered_keys(scaled), jnp.exp(scaled)  # the best is at 0: weights in [0, 1]
    wanted = top_p * folded_sum(weights)[:, 0]
    is_off = top_p >= 1

    def enough(threshold):
        kept = jnp.where(keys >= threshold[:, None], weights, jnp.float32(0))
        return folded_sum(kept)[:, 0] >= wanted

    guess = _guess_threshold(best, wanted)
    is_right = enough(guess) & ~enough(guess + 1)
    threshold = lax.cond(
        jnp.all(is_right | is_off), lambda: guess, lambda: _largest_that(enough, top_p.shape[0])
    )
    return jnp.where(is_off, jnp.uint32(0), threshold)


def _guess_threshold(best: jax.Array, wanted: jax.Array) -> jax.Array:
    """The key of the candidate at which the candidates' own sum reaches the wanted mass."""
    place = jnp.arange(best.shape[-1])
    upper = (place[:, None] <= place[None, :]).astype(jnp.float32)
    # A product with ones above the diagonal is a cumulative sum that compiles at once.
    mass = jnp.dot(jnp.exp(best), upper, precision=lax.Precision.HIGHEST)
    reached = jnp.sum((mass < wanted[:, None]).astype(jnp.int32), axis=-1)
    place = jnp.minimum(reached, best.shape[-1] - 1)
    return _ordered_keys(jnp.take_along_axis(best, place[:, None], axis=-1)[:, 0])


def _ordered_keys(values: jax.Array) -> jax.Array:
    """u32 keys in the order of the floats.

    Example: -1.0, -0.5, 0.5 have bits bf80.., bf00.., 3f00..; negative ones are inverted and
    positive ones get the top bit: 407f.., 40ff.., bf00..
    """
    bits = lax.bitcast_convert_type(values, jnp.uint32)
    return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))


def _largest_that(enough: Callable[[jax.Array], jax.Array], rows: int) -> jax.Array:
    """The largest threshold a row for which `enough` holds, found bit by bit: [B] u32.

    No sort: 32 passes that count or sum; what holds for a threshold holds for every smaller one.
    """

    def try_bit(step, threshold):
        candidate = threshold | (jnp.uint32(1) << (jnp.uint32(31) - step.astype(jnp.uint32)))
        return jnp.where(enough(candidate), candidate, threshold)

    return lax.fori_loop(0, 32, try_bit, jnp.zeros((rows,), jnp.uint32))
