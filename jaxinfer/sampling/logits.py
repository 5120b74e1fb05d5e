"""DEV. Which tokens may be drawn: temperature, min-p, top-k and top-p as per-row arrays.

No setting is static: one program serves every combination. Knows nothing of random numbers.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from pallas_kernels.folded_sum import folded_sum

EXCLUDED = -jnp.inf


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
    scaled = lax.cond(jnp.any(rows.top_k > 0), _keep_top_k, _keep_all, scaled, rows)
    return lax.cond(jnp.any(rows.top_p < 1), _keep_top_p, _keep_all, scaled, rows)


def _keep_all(scaled: jax.Array, rows: SamplingRows) -> jax.Array:
    return scaled


def _keep_top_k(scaled: jax.Array, rows: SamplingRows) -> jax.Array:
    vocab_size = scaled.shape[-1]
    wanted = jnp.where(rows.top_k > 0, jnp.minimum(rows.top_k, vocab_size), vocab_size)
    keys = _ordered_keys(scaled)

    def enough(threshold):
        kept = keys >= threshold[:, None]
        return jnp.sum(kept.astype(jnp.int32), axis=-1) >= wanted

    return jnp.where(keys >= _largest_that(enough, keys)[:, None], scaled, EXCLUDED)


def _keep_top_p(scaled: jax.Array, rows: SamplingRows) -> jax.Array:
    weights = jnp.exp(scaled)  # the best is at 0, so these lie in [0, 1]
    wanted = rows.top_p * folded_sum(weights)[:, 0]
    keys = _ordered_keys(scaled)

    def enough(threshold):
        kept = jnp.where(keys >= threshold[:, None], weights, jnp.float32(0))
        return folded_sum(kept)[:, 0] >= wanted

    threshold = _largest_that(enough, keys)
    threshold = jnp.where(rows.top_p < 1, threshold, jnp.uint32(0))
    return jnp.where(keys >= threshold[:, None], scaled, EXCLUDED)


def _ordered_keys(values: jax.Array) -> jax.Array:
    """u32 keys in the order of the floats.

    Example: -1.0, -0.5, 0.5 have bits bf80.., bf00.., 3f00..; negative ones are inverted and
    positive ones get the top bit: 407f.., 40ff.., bf00..
    """
    bits = lax.bitcast_convert_type(values, jnp.uint32)
    return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))


def _largest_that(enough, keys: jax.Array) -> jax.Array:
    """The largest threshold a row for which `enough` holds, found bit by bit: [B] u32.

    No sort: 32 passes that count or sum; what holds for a threshold holds for every smaller one.
    """

    def try_bit(step, threshold):
        candidate = threshold | (jnp.uint32(1) << (jnp.uint32(31) - step.astype(jnp.uint32)))
        return jnp.where(enough(candidate), candidate, threshold)

    return lax.fori_loop(0, 32, try_bit, jnp.zeros(keys.shape[:1], jnp.uint32))
