"""DEV. Rotary position embeddings: frequencies (host arithmetic) and the rotation."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxinfer.config.rope_config import RopeConfig
from pallas_kernels.rounding import rounded


@struct.dataclass
class RopeTable:
    """The rotation of every token of a step."""

    cos: jax.Array  # [B, Q, 1, D/2] f32
    sin: jax.Array  # [B, Q, 1, D/2] f32


def rope_table(rope: RopeConfig, positions: jax.Array, head_dim: int) -> RopeTable:
    """The rotation angles of `positions`.

    Args:
        rope: which frequencies.
        positions: [B, Q] i32.
        head_dim: D, even.

    Returns:
        cosines and sines, already multiplied by YaRN's attention factor.
    """
    frequencies = jnp.asarray(rope_frequencies(rope, head_dim))
    angles = positions.astype(jnp.float32)[:, :, None, None] * frequencies[None, None, None, :]
    factor = jnp.float32(rope.attention_factor)
    return RopeTable(cos=jnp.cos(angles) * factor, sin=jnp.sin(angles) * factor)


def apply_rope(x: jax.Array, table: RopeTable) -> jax.Array:
    """Rotates pairs (i, i + D/2) of every head.

    Args:
        x: [B, Q, H, D].
        table: of the same B and Q.

    Returns:
        [B, Q, H, D] of x's dtype.

    Source: RoFormer (Su et al. 2021), equation 34, in the half-split order of Hugging Face.
    """
    half = x.shape[-1] // 2
    wide = x.astype(jnp.float32)
    left, right = wide[..., :half], wide[..., half:]
    turned = (
        rounded(left * table.cos) - rounded(right * table.sin),
        rounded(right * table.cos) + rounded(left * table.sin),
    )
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def rope_frequencies(rope: RopeConfig, head_dim: int) -> np.ndarray:
    """Radians a position for each pair: [D/2] f32."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    plain = (1.0 / np.float32(rope.theta) ** exponents).astype(np.float32)
    if rope.scaling == "linear":
        plain = plain / np.float32(rope.factor)
    elif rope.scaling == "llama3":
        plain = _llama3(plain, rope)
    elif rope.scaling == "yarn":
        plain = _yarn(plain, rope, head_dim)
    if rope.divisors:
        plain = plain / np.asarray(rope.divisors, np.float32)
    return plain.astype(np.float32)


def _llama3(plain: np.ndarray, rope: RopeConfig) -> np.ndarray:
    """Long waves are stretched, short ones kept, those between blended (Llama 3.1 model card)."""
    waves = 2 * math.pi / plain
    turns = rope.original_max_position / waves
    span = rope.high_freq_factor - rope.low_freq_factor
    keep = np.clip((turns - rope.low_freq_factor) / span, 0.0, 1.0)
    return (1 - keep) * plain / rope.factor + keep * plain


def _yarn(plain: np.ndarray, rope: RopeConfig, head_dim: int) -> np.ndarray:
    """NTK-by-parts (YaRN, Peng et al. 2023, section 3.2)."""

    def pair_with_turns(turns: float) -> float:
        ratio = rope.original_max_position / (turns * 2 * math.pi)
        return head_dim * math.log(ratio) / (2 * math.log(rope.theta))

    low, high = pair_with_turns(rope.beta_fast), pair_with_turns(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    span = max(high - low, 1e-3)
    stretch = np.clip((np.arange(head_dim // 2, dtype=np.float32) - low) / span, 0.0, 1.0)
    return stretch * plain / rope.factor + (1 - stretch) * plain
