"""Rotary frequencies by their formulas in float64, and the rotation itself."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.config.rope_config import RopeConfig, rope_from_config
from jaxinfer.layers.rope import apply_rope, rope_frequencies, rope_table

D = 16
PLAIN = 1e4 ** -(np.arange(0, D, 2) / D)
LLAMA3: dict[str, Any] = dict(
    scaling="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position=256,
)


def test_plain_and_linear() -> None:
    np.testing.assert_allclose(rope_frequencies(RopeConfig(), D), PLAIN, rtol=1e-6)
    linear = RopeConfig(scaling="linear", factor=4.0)
    np.testing.assert_allclose(rope_frequencies(linear, D), PLAIN / 4, rtol=1e-6)


def test_llama3_keeps_short_waves_and_stretches_long_ones() -> None:
    found = rope_frequencies(RopeConfig(**LLAMA3), D)
    for ours, plain in zip(found, PLAIN, strict=True):
        turns = 256 * plain / (2 * math.pi)
        if turns >= 4:
            expected = plain
        elif turns <= 1:
            expected = plain / 8
        else:
            keep = (turns - 1) / 3
            expected = (1 - keep) * plain / 8 + keep * plain
        assert ours == pytest.approx(expected, rel=1e-5)
    assert found[0] == pytest.approx(PLAIN[0]) and found[-1] == pytest.approx(PLAIN[-1] / 8)


def test_yarn_goes_from_kept_to_stretched() -> None:
    rope = rope_from_config({"rope_type": "yarn", "factor": 4.0}, 1e4, 64)
    found = rope_frequencies(rope, D)

    def place(turns: float) -> float:
        return D * math.log(64 / (turns * 2 * math.pi)) / (2 * math.log(1e4))

    low, high = max(math.floor(place(32)), 0), min(math.ceil(place(1)), D - 1)
    ramp = np.clip((np.arange(D // 2) - low) / (high - low), 0, 1)
    np.testing.assert_allclose(found, PLAIN / 4 * ramp + PLAIN * (1 - ramp), rtol=1e-5)
    assert found[0] == pytest.approx(1.0) and found[-1] == pytest.approx(PLAIN[-1] / 4)


def test_divisors_divide_each_frequency() -> None:
    """BB-11 (llama.cpp#8650): rope_freqs.weight divides frequency i by its entry i."""
    divisors = (1.0, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0)
    found = rope_frequencies(RopeConfig(divisors=divisors), D)
    np.testing.assert_allclose(found, PLAIN / np.array(divisors), rtol=1e-6)


def test_dynamic_scaling_starts_past_the_trained_context() -> None:
    rope = rope_from_config({"rope_type": "dynamic", "factor": 2.0}, 1e4, 64)
    for context in (0, 1, 64):
        np.testing.assert_array_equal(
            rope_frequencies(rope, D, context), rope_frequencies(RopeConfig(), D)
        )
    theta = 1e4 * (2.0 * 96 / 64 - 1) ** (D / (D - 2))
    expected = theta ** -(np.arange(0, D, 2) / D)
    np.testing.assert_allclose(rope_frequencies(rope, D, 96), expected, rtol=1e-5)


def test_longrope_changes_its_divisors_past_the_trained_context() -> None:
    short, long = tuple(1 + np.arange(8) / 8), tuple(2 + np.arange(8) / 4)
    entry = {"rope_type": "longrope", "short_factor": short, "long_factor": long}
    rope = rope_from_config({**entry, "original_max_position_embeddings": 32}, 1e4, 64)
    for context, divisors in ((0, short), (32, short), (33, long), (64, long)):
        found = rope_frequencies(rope, D, context)
        np.testing.assert_allclose(found, PLAIN / np.array(divisors), rtol=1e-6)


def test_part_of_a_head_is_turned() -> None:
    """BB-07: pairs lie half of the turned part apart, the rest stays, and keeps its bits."""
    x = np.random.default_rng(4).normal(size=(1, 2, 3, D)).astype(np.float32)
    positions = np.array([[5, 900]])
    found = rotate(x, positions, RopeConfig(rotary_dim=12))
    whole = rotate(x[..., :12], positions, RopeConfig())
    np.testing.assert_array_equal(found[..., :12], whole)
    np.testing.assert_array_equal(found[..., 12:], x[..., 12:])


def rotate(x: np.ndarray, positions: np.ndarray, rope: RopeConfig) -> np.ndarray:
    table = rope_table(rope, jnp.asarray(positions, jnp.int32), x.shape[-1])
    return np.asarray(apply_rope(jnp.asarray(x), table))


@pytest.mark.parametrize("rope", [RopeConfig(), RopeConfig(attention_factor=1.25)])
def test_rotation_of_half_split_pairs(rope: RopeConfig) -> None:
    """At late positions too, where an error of the pairs or the exponent shows (BB-07)."""
    x = np.random.default_rng(0).normal(size=(2, 3, 4, D)).astype(np.float32)
    positions = np.array([[0, 1, 2], [57, 58, 3000]])
    found = rotate(x, positions, rope)
    angles = positions[..., None, None] * PLAIN
    pairs = (x[..., : D // 2] + 1j * x[..., D // 2 :]) * np.exp(1j * angles) * rope.attention_factor
    exact = np.concatenate([pairs.real, pairs.imag], axis=-1)
    np.testing.assert_allclose(found[:, :2], exact[:, :2], atol=3e-5)
    # At 3000 radians a float32 angle is off by 1e-4.
    np.testing.assert_allclose(found, exact, atol=3e-3)
    np.testing.assert_allclose(found[0, 0], x[0, 0] * rope.attention_factor, rtol=1e-6)


def test_scores_depend_on_distances_alone() -> None:
    q, k = np.random.default_rng(1).normal(size=(2, 1, 1, 1, D)).astype(np.float32)
    scores = [
        float(
            (
                rotate(q, np.array([[a]]), RopeConfig()) * rotate(k, np.array([[b]]), RopeConfig())
            ).sum()
        )
        for a, b in ((5, 2), (105, 102), (33, 30))
    ]
    np.testing.assert_allclose(scores, scores[0], atol=1e-4)


def test_bfloat16_is_rotated_in_float32() -> None:
    x = jnp.asarray(np.random.default_rng(2).normal(size=(1, 2, 1, D)), jnp.bfloat16)
    table = rope_table(RopeConfig(), jnp.asarray([[3, 4]], jnp.int32), D)
    found = apply_rope(x, table)
    wide = apply_rope(x.astype(jnp.float32), table).astype(jnp.bfloat16)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(found, np.float32), np.asarray(wide, np.float32))


def test_bits_do_not_depend_on_the_shape() -> None:
    """A rotation inside a larger or smaller step has the same bits."""

    @jax.jit
    def program(x, positions):
        return apply_rope(x, rope_table(RopeConfig(), positions, D))

    x = np.random.default_rng(3).normal(size=(8, 6, 2, D)).astype(np.float32)
    positions = np.arange(48, dtype=np.int32).reshape(8, 6)
    whole = np.asarray(program(x, positions))
    np.testing.assert_array_equal(np.asarray(program(x[:1, :1], positions[:1, :1])), whole[:1, :1])
    np.testing.assert_array_equal(np.asarray(program(x[3:5], positions[3:5])), whole[3:5])
