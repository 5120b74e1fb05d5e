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

    cos: jax.Array  # [B, Q, 1, pairs] f32, as many as are turned: D/2 or fewer
    sin: jax.Array  # [B, Q, 1, pairs] f32


def rope_table(
    rope: RopeConfig, positions: jax.Array, head_dim: int, context: int = 0
) -> RopeTable:
    """The rotation angles of `positions`.

    Args:
        rope: which frequencies.
        positions: [B, Q] i32.
        head_dim: D, even.
        context: tokens that a sequence may have, for ropes that depend on it.

    Returns:
        cosines and sines, already multiplied by the attention factor of YaRN or LongRoPE.
    """
    frequencies = jnp.asarray(rope_frequencies(rope, head_dim, context))
    angles = positions.astype(jnp.float32)[:, :, None, None] * frequencies[None, None, None, :]
    factor = jnp.float32(rope.attention_factor)
    return RopeTable(cos=jnp.cos(angles) * factor, sin=jnp.sin(angles) * factor)


def apply_rope(x: jax.Array, table: RopeTable) -> jax.Array:
    """Rotates pairs (i, i + pairs) of every head; values past the last pair stay as they are.

    Args:
        x: [B, Q, H, D].
        table: of the same B and Q.

    Returns:
        [B, Q, H, D] of x's dtype.

    Source: RoFormer (Su et al. 2021), equation 34, in the half-split order of Hugging Face.
    """
    half = table.cos.shape[-1]
    wide = x.astype(jnp.float32)
    left, right, rest = wide[..., :half], wide[..., half : 2 * half], wide[..., 2 * half :]
    turned = (
        rounded(left * table.cos) - rounded(right * table.sin),
        rounded(right * table.cos) + rounded(left * table.sin),
    )
    return jnp.concatenate([*turned, rest], axis=-1).astype(x.dtype)


def rope_frequencies(rope: RopeConfig, head_dim: int, context: int = 0) -> np.ndarray:
    """Radians a position for each pair that is turned: [pairs] f32."""
    turned = rope.rotary_dim or head_dim
    is_long = rope.depends_on_context and context > rope.original_max_position
    theta = _ntk_theta(rope, turned, context) if is_long else rope.theta
    exponents = np.arange(0, turned, 2, dtype=np.float32) / np.float32(turned)
    plain = (1.0 / np.float32(theta) ** exponents).astype(np.float32)
    if rope.scaling == "linear":
        plain = plain / np.float32(rope.factor)
    elif rope.scaling == "llama3":
        plain = _llama3(plain, rope)
    elif rope.scaling == "yarn":
        plain = _yarn(plain, rope, turned)
    divisors = rope.long_divisors if is_long and rope.long_divisors else rope.divisors
    if divisors:
        plain = plain / np.asarray(divisors, np.float32)
    return plain.astype(np.float32)


def _ntk_theta(rope: RopeConfig, turned: int, context: int) -> float:
    """The base of dynamic NTK scaling for a context past the trained one; longrope keeps its own.

    Source: "NTK-aware scaled RoPE" (bloc97 and emozilla, 2023), as transformers computes it.
    """
    if rope.scaling != "dynamic":
        return rope.theta
    stretch = rope.factor * context / rope.original_max_position - (rope.factor - 1)
    return rope.theta * stretch ** (turned / (turned - 2))


def _llama3(plain: np.ndarray, rope: RopeConfig) -> np.ndarray:
    """Long waves are stretched, short ones kept, those between blended (Llama 3.1 model card)."""
    waves = 2 * math.pi / plain
    turns = rope.original_max_position / waves
    span = rope.high_freq_factor - rope.low_freq_factor
    keep = np.clip((turns - rope.low_freq_factor) / span, 0.0, 1.0)
    return (1 - keep) * plain / rope.factor + keep * plain


def _yarn(plain: np.ndarray, rope: RopeConfig, turned: int) -> np.ndarray:
    """NTK-by-parts (YaRN, Peng et al. 2023, section 3.2)."""

    def pair_with_turns(turns: float) -> float:
        ratio = rope.original_max_position / (turns * 2 * math.pi)
        return turned * math.log(ratio) / (2 * math.log(rope.theta))

    low, high = pair_with_turns(rope.beta_fast), pair_with_turns(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, turned - 1)
    span = max(high - low, 1e-3)
    stretch = np.clip((np.arange(turned // 2, dtype=np.float32) - low) / span, 0.0, 1.0)
    return stretch * plain / rope.factor + (1 - stretch) * plain
