"""The spellings of a rotary embedding: equal ones read equal, others are refused by name."""

import math
from typing import Any

import pytest

from jaxinfer.config.rope_config import (
    RopeConfig,
    rope_from_config,
    rope_from_gguf,
    rotary_size,
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
    linear = RopeConfig(scaling="linear", factor=2.0, original_max_position=64)
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


@pytest.mark.parametrize("name", ["su2", "mrope", "proportional"])
def test_an_unknown_type_is_refused_by_name(name: str) -> None:
    """BB-06: `su2` is refused."""
    with pytest.raises(UnsupportedError, match=f"rope type '{name}' is not supported; supported:"):
        read({"rope_type": name, "factor": 2.0})


LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.5],
    "long_factor": [2.0, 3.0],
    "original_max_position_embeddings": 32,
}


def test_dynamic_scaling_starts_at_the_model_s_context() -> None:
    rope = read({"type": "dynamic", "factor": 2.0})
    assert rope == RopeConfig(scaling="dynamic", factor=2.0, original_max_position=64)
    assert rope.depends_on_context and not RopeConfig().depends_on_context


@pytest.mark.parametrize("name", ["longrope", "su", "yarn"])
def test_longrope_under_its_names(name: str) -> None:
    """Phi-3 files of the first days say su, or yarn."""
    rope = read({**LONGROPE, "rope_type": name})
    assert rope.scaling == "longrope" and rope.original_max_position == 32
    assert (rope.divisors, rope.long_divisors) == ((1.0, 1.5), (2.0, 3.0))
    assert rope.attention_factor == math.sqrt(1 + math.log(2) / math.log(32))


@pytest.mark.parametrize(
    ("more", "magnitude"),
    [
        ({"attention_factor": 1.5}, 1.5),
        ({"factor": 4.0}, math.sqrt(1 + math.log(4) / math.log(32))),
        ({"original_max_position_embeddings": 64}, 1.0),
    ],
)
def test_longrope_s_attention_factor(more: dict[str, Any], magnitude: float) -> None:
    assert read(LONGROPE | more).attention_factor == pytest.approx(magnitude)


@pytest.mark.parametrize("change", [{"long_factor": None}, {"long_factor": 2.0}])
def test_longrope_needs_both_lists(change: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="needs the list 'long_factor'"):
        read(LONGROPE | change)
    with pytest.raises(CheckpointError, match="divisors=.* must be positive"):
        read(LONGROPE | {"short_factor": [1.0, 0.0]})


def test_short_factors_beside_another_type_are_refused() -> None:
    """They made any type a longrope."""
    with pytest.raises(CheckpointError, match="short_factor beside rope type 'linear'"):
        read(LONGROPE | {"rope_type": "linear", "factor": 4.0})
    assert read({"rope_type": "linear", "factor": 4.0, "short_factor": None}).scaling == "linear"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mrope_section", [16, 24, 24]),
        ("mrope_interleaved", True),
        ("alpha", 1000.0),
        ("short_mscale", 1.2),
        ("full_attention", {"rope_type": "yarn", "factor": 4.0}),
    ],
)
def test_a_key_that_is_not_read_is_refused_by_name(key: str, value: Any) -> None:
    """A nested entry ran without scaling, with a theta of 10000."""
    with pytest.raises(UnsupportedError, match=f"the rope entry has .*{key}"):
        read({"rope_type": "default", key: value})
    assert read({"rope_type": "default", key: None}) == RopeConfig()


def test_what_real_files_say_beside_the_numbers() -> None:
    finetuned = {"type": "yarn", "factor": 16.0, "finetuned": True}
    assert read(finetuned) == read({"type": "yarn", "factor": 16.0})
    v5 = LLAMA3 | {"rope_theta": 5e5, "partial_rotary_factor": 1.0}
    assert read(v5) == read(LLAMA3, theta=5e5)


@pytest.mark.parametrize(
    ("entry", "length"),
    [
        ({}, 64),
        ({"rope_type": "linear", "factor": 4.0}, 256),
        ({"rope_type": "linear", "factor": 4.0, "original_max_position_embeddings": 16}, 64),
        ({"rope_type": "dynamic", "factor": 2.5}, 160),
        ({"rope_type": "yarn", "factor": 4.0}, 256),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, 256),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}, 64),
        ({"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16}, 64),
        (LLAMA3, 64),
        (LONGROPE, 64),
    ],
)
def test_how_far_a_scaling_reaches(entry: dict[str, Any], length: int) -> None:
    """A file gives the trained length or the stretched one; only the original says which."""
    assert read(entry).longest_context(64) == length


def test_rotary_size() -> None:
    assert [rotary_size(20, part) for part in (1.0, 0.8, 0.5)] == [0, 16, 10]
    for part in (0.0, 1.5, 0.1):
        with pytest.raises(CheckpointError, match=f"partial_rotary_factor={part}"):
            rotary_size(16, part)
    with pytest.raises(CheckpointError, match="rotary_dim=5 must be even"):
        RopeConfig(rotary_dim=5)


def test_a_factor_without_a_type_is_refused() -> None:
    with pytest.raises(CheckpointError, match="has a factor and no rope_type"):
        read({"factor": 2.0})


def test_partial_rotation_is_refused() -> None:
    """BB-07 (mlx-lm#1698): never ignored in a family without it."""
    with pytest.raises(UnsupportedError, match="partial_rotary_factor=0.5"):
        read({"partial_rotary_factor": 0.5})
    assert read({"partial_rotary_factor": 1.0}) == RopeConfig()
    partial = rope_from_config({"partial_rotary_factor": 0.5}, 1e4, 64, rotary_dim=8)
    assert partial == RopeConfig(rotary_dim=8)


@pytest.mark.parametrize(
    "fields",
    [
        {"theta": 0.0},
        {"theta": float("nan")},
        {"factor": -2.0},
        {"factor": 0.0},
        {"theta": math.inf},
        {"factor": math.inf},
        {"attention_factor": 0.0},
        {"attention_factor": math.nan},
        {"beta_fast": math.nan},
        {"scaling": "yarn", "theta": 1.0, "original_max_position": 64},
        {"scaling": "yarn", "beta_fast": 0.5, "original_max_position": 64},
        {"scaling": "llama3", "original_max_position": 64, "low_freq_factor": math.nan},
        {"scaling": "llama3", "original_max_position": 64, "low_freq_factor": 4.0},
    ],
)
def test_values_that_cannot_be_computed_with_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="mend the rope entries"):
        RopeConfig(**fields)


@pytest.mark.parametrize(
    ("scaling", "length"),
    [("longrope", 1), ("llama3", -8192), ("yarn", 0), ("yarn", -5), ("dynamic", 0), ("none", -1)],
)
def test_trained_lengths_that_cannot_be(scaling: Any, length: int) -> None:
    """Division by the logarithm of 1, the logarithm of -5: raw errors once."""
    with pytest.raises(CheckpointError, match=f"original_max_position={length} must be"):
        RopeConfig(scaling=scaling, original_max_position=length)


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (LONGROPE | {"original_max_position_embeddings": 1}, "original_max_position=1 must be 2"),
        (LLAMA3 | {"original_max_position_embeddings": -8192}, "=-8192 of the rope"),
        (LLAMA3 | {"original_max_position_embeddings": 32.5}, "=32.5 of the rope"),
        (LLAMA3 | {"factor": math.inf}, "factor=inf"),
        (LLAMA3 | {"factor": "8"}, "factor='8'"),
        ({"rope_type": "yarn", "factor": 4.0, "attention_factor": 0}, "attention_factor=0"),
        ({"rope_type": "yarn", "factor": 4.0, "beta_fast": 0}, "beta_fast=0"),
        ({"rope_type": "yarn", "factor": 4.0, "truncate": "no"}, "truncate='no'"),
        ({"rope_type": "yarn", "factor": 4.0, "mscale": -1, "mscale_all_dim": 1}, "mscale=-1"),
        ({"rope_theta": math.inf}, "rope_theta=inf"),
        ({"rope_theta": 0}, "rope_theta=0"),
    ],
)
def test_numbers_of_an_entry_that_cannot_be(entry: dict[str, Any], told: str) -> None:
    with pytest.raises(CheckpointError, match=told):
        read(entry)


def test_gguf_reads_the_same_scalings() -> None:
    base = {"llama.context_length": 64, "llama.rope.freq_base": 5e5}
    linear = RopeConfig(theta=5e5, scaling="linear", factor=2.0, original_max_position=64)
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


def test_gguf_has_longrope_as_tensors() -> None:
    base = {"phi3.context_length": 64, "phi3.rope.scaling.original_context_length": 32}
    factors = (1.0, 1.5), (2.0, 3.0)
    stated = {**base, "phi3.rope.scaling.attn_factor": 1.25}
    rope = rope_from_gguf(stated, "phi3", rotary_dim=4, longrope=factors)
    assert (rope.scaling, rope.attention_factor, rope.rotary_dim) == ("longrope", 1.25, 4)
    assert (rope.divisors, rope.long_divisors, rope.original_max_position) == (*factors, 32)
    assert rope_from_gguf(base, "phi3", longrope=factors) == read(LONGROPE)


def test_yarn_s_magnitude_does_not_shrink() -> None:
    assert yarn_magnitude(0.5) == yarn_magnitude(1.0) == 1.0
    assert yarn_magnitude(math.e) == pytest.approx(1.1)
