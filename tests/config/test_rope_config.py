"""The spellings of a rotary embedding: equal ones read equal, others are refused by name."""

import math
from typing import Any

import pytest

from jaxinfer.config.rope_config import (
    RopeConfig,
    rope_from_config,
    rope_from_gguf,
    yarn_magnitude,
)
from jaxinfer.errors import CheckpointError, UnsupportedError

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def read(entry: dict[str, Any], theta: float = 1e4, max_position: int = 64) -> RopeConfig:
    return rope_from_config(entry, theta, max_position)


def test_old_new_and_both_keys_are_one_scaling() -> None:
    """BB-06 (vllm#9481)."""
    ways = [{"type": "linear"}, {"rope_type": "linear"}, {"type": "linear", "rope_type": "linear"}]
    linear = RopeConfig(scaling="linear", factor=2.0)
    assert [read({**way, "factor": 2}) for way in ways] == [linear] * 3


@pytest.mark.parametrize("entry", [{}, {"type": "default"}, {"rope_type": "default"}])
def test_a_minimal_entry_is_no_scaling(entry: dict[str, Any]) -> None:
    """BB-06."""
    assert read(entry) == RopeConfig()


def test_yarn_takes_the_model_s_context_as_its_original() -> None:
    """BB-06: the original context defaults to max_position."""
    short = {"rope_type": "yarn", "factor": 4.0}
    assert read(short) == read({**short, "original_max_position_embeddings": 64})
    assert read(short).original_max_position == 64
    assert read(short).attention_factor == 0.1 * math.log(4) + 1


@pytest.mark.parametrize(
    ("more", "factor"),
    [
        ({"attention_factor": 1.5}, 1.5),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        ({"mscale": 2.0}, 0.1 * math.log(4) + 1),
    ],
)
def test_yarn_s_attention_factor(more: dict[str, Any], factor: float) -> None:
    entry = {"rope_type": "yarn", "factor": 4.0, **more}
    assert read(entry).attention_factor == pytest.approx(factor)


def test_llama3_keeps_all_its_fields() -> None:
    rope = read(LLAMA3, theta=5e5)
    assert (rope.theta, rope.scaling, rope.factor) == (5e5, "llama3", 8.0)
    assert (rope.low_freq_factor, rope.high_freq_factor) == (1.0, 4.0)
    assert rope.original_max_position == 32


@pytest.mark.parametrize("key", ["factor", "low_freq_factor", "high_freq_factor"])
def test_a_missing_field_is_named(key: str) -> None:
    with pytest.raises(CheckpointError, match=f"rope type 'llama3' needs '{key}'"):
        read({name: value for name, value in LLAMA3.items() if name != key})


def test_an_entry_s_own_theta_wins() -> None:
    assert read({"rope_type": "default", "rope_theta": 5e5}, theta=1e4).theta == 5e5


@pytest.mark.parametrize("name", ["su2", "dynamic", "longrope"])
def test_an_unknown_type_is_refused_by_name(name: str) -> None:
    """BB-06: `su2` is refused."""
    with pytest.raises(UnsupportedError, match=f"rope type '{name}' is not supported; supported:"):
        read({"rope_type": name, "factor": 2.0})


def test_a_factor_without_a_type_is_refused() -> None:
    with pytest.raises(CheckpointError, match="has a factor and no rope_type"):
        read({"factor": 2.0})


def test_partial_rotation_is_refused() -> None:
    """BB-07 (mlx-lm#1698): never ignored in a family without it."""
    with pytest.raises(UnsupportedError, match="partial_rotary_factor=0.5"):
        read({"partial_rotary_factor": 0.5})
    assert read({"partial_rotary_factor": 1.0}) == RopeConfig()


@pytest.mark.parametrize(
    "fields",
    [
        {"theta": 0.0},
        {"theta": float("nan")},
        {"factor": -2.0},
        {"factor": 0.0},
        {"scaling": "llama3", "low_freq_factor": 4.0, "high_freq_factor": 4.0},
    ],
)
def test_values_that_cannot_be_computed_with_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="mend the rope entries"):
        RopeConfig(**fields)


def test_gguf_reads_the_same_scalings() -> None:
    base = {"llama.context_length": 64, "llama.rope.freq_base": 5e5}
    linear = RopeConfig(theta=5e5, scaling="linear", factor=2.0)
    scaling = "llama.rope.scaling."
    assert rope_from_gguf(base, "llama") == RopeConfig(theta=5e5)
    assert rope_from_gguf({**base, "llama.rope.scale_linear": 2.0}, "llama") == linear
    typed = {f"{scaling}type": "linear", f"{scaling}factor": 2.0}
    assert rope_from_gguf({**base, **typed}, "llama") == linear
    yarn = {f"{scaling}type": "yarn", f"{scaling}factor": 4.0}
    assert rope_from_gguf({**base, **yarn}, "llama") == read(
        {"rope_type": "yarn", "factor": 4.0}, theta=5e5
    )
    with pytest.raises(UnsupportedError, match="yarn_ext_factor=0.5"):
        rope_from_gguf({**base, **yarn, f"{scaling}yarn_ext_factor": 0.5}, "llama")


def test_yarn_s_magnitude_does_not_shrink() -> None:
    assert yarn_magnitude(0.5) == yarn_magnitude(1.0) == 1.0
    assert yarn_magnitude(math.e) == pytest.approx(1.1)
