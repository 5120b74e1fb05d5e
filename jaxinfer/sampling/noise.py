"""DEV. Gumbel noise for draws: a pure function of (seed, sample index, position, token).

The bits are those of `jax.random` with folded-in keys; written out they are one fused loop, half as
long as jax's on a CPU (bench/LOG.md). Knows nothing of logits.
"""

import jax
import jax.numpy as jnp

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_GROUPS = 5  # of four rounds


def gumbel_noise(
    seeds: jax.Array, sample_index: jax.Array, positions: jax.Array, size: int
) -> jax.Array:
    """Independent noise of the Gumbel law for `size` tokens a row.

    Args:
        seeds: [B, 2] u32 – low and high word.
        sample_index: [B] i32.
        positions: [B] i32.

    Returns:
        [B, size] f32, finite.
    """
    key = _fold_in((seeds[:, 0], seeds[:, 1]), sample_index)
    key = _fold_in(key, positions)
    tokens = jnp.arange(size, dtype=jnp.uint32)[None, :]
    first, second = threefry((key[0][:, None], key[1][:, None]), (jnp.zeros_like(tokens), tokens))
    bits = first ^ second
    # (k + 1/2) / 2^23 for k < 2^23 is exact and lies inside (0, 1): no rounding to disagree about.
    uniform = ((bits >> 9).astype(jnp.float32) + jnp.float32(0.5)) * jnp.float32(2.0**-23)
    return -jnp.log(-jnp.log(uniform))


Words = tuple[jax.Array, jax.Array]


def threefry(key: Words, counter: Words) -> Words:
    """Threefry-2x32 of twenty rounds: two random u32 words for every counter.

    Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011), §3.
    """
    keys = (*key, key[0] ^ key[1] ^ jnp.uint32(_PARITY))
    first, second = counter[0] + keys[0], counter[1] + keys[1]
    for group in range(_GROUPS):
        for turn in _ROTATIONS[group % 2]:
            first = first + second
            second = ((second << turn) | (second >> (32 - turn))) ^ first
        first = first + keys[(group + 1) % 3]
        second = second + keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return first, second


def _fold_in(key: Words, number: jax.Array) -> Words:
    return threefry(key, (jnp.zeros(number.shape, jnp.uint32), number.astype(jnp.uint32)))
