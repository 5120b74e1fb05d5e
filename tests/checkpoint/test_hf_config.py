"""config.json of both transformers generations, and the cases where others read it wrong."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jaxinfer.checkpoint.hf_config import read_hf_config
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.config.rope_config import RopeConfig
from jaxinfer.errors import CheckpointError, UnsupportedError
from tests.support.tiny_models import TINY_CONFIG, TINY_GEMMA3_CONFIG, without

FIXTURES = Path(__file__).parents[1] / "data/float"


def read(folder: Path, config: dict[str, Any], generation: dict | None = None) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return read_hf_config(folder)[0]


@pytest.mark.parametrize("name", sorted(path.name for path in FIXTURES.iterdir()))
def test_both_generations_say_the_same(tmp_path: Path, name: str) -> None:
    new = read_hf_config(FIXTURES / name)[0]
    shutil.copy(FIXTURES / name / "config.v4.json", tmp_path / "config.json")
    old, architecture, raw = read_hf_config(tmp_path)
    assert old == new
    assert architecture.name == new.architecture
    assert raw["transformers_version"] == "4.51.3"


def test_llama_fields(tmp_path: Path) -> None:
    assert read(tmp_path, TINY_CONFIG) == ModelConfig(
        architecture="llama",
        vocab_size=320,
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        mlp_size=96,
        max_position=256,
        norm_eps=1e-5,
        windows=(0, 0),
        ropes=(RopeConfig(theta=10000.0),),
        layer_ropes=(0, 0),
        attention_scale=0.25,
        bos_token_id=1,
        eos_token_ids=(2,),
    )


def test_gemma3_fields(tmp_path: Path) -> None:
    config = read(tmp_path, TINY_GEMMA3_CONFIG | {"rope_scaling": {"type": "linear", "factor": 8}})
    assert config.windows == (8, 8, 8, 8, 8, 0, 8)
    assert config.layer_ropes == (1, 1, 1, 1, 1, 0, 1)
    assert config.ropes == (
        RopeConfig(theta=1e6, scaling="linear", factor=8.0, original_max_position=256),
        RopeConfig(theta=10000.0),
    )
    assert config.longest_context == config.max_position == 256
    assert config.qk_norm and config.tie_embeddings and config.activation == "gelu_tanh"
    assert config.embedding_scale == 8.0 and config.attention_scale == 32**-0.5


def test_head_dim_may_differ_from_hidden_over_heads(tmp_path: Path) -> None:
    """BB-04 (transformers#46211): heads x head_dim is not the hidden size."""
    config = TINY_CONFIG | {"hidden_size": 48, "num_attention_heads": 5, "num_key_value_heads": 1}
    assert read(tmp_path, config).head_dim == 16


@pytest.mark.parametrize("key", [{"head_dim": None}, {}])
def test_head_dim_null_and_absent_are_hidden_over_heads(tmp_path: Path, key: dict) -> None:
    """BB-04 (vllm-fork#1294)."""
    assert read(tmp_path, without(TINY_CONFIG, "head_dim") | key).head_dim == 16


def test_head_dim_that_cannot_be_derived_is_refused(tmp_path: Path) -> None:
    """BB-04 (entrenar#262)."""
    config = without(TINY_CONFIG, "head_dim") | {"num_attention_heads": 5, "hidden_size": 64}
    with pytest.raises(CheckpointError, match="head_dim"):
        read(tmp_path, config)


def scaled(entry: Any, key: str = "rope_scaling", **changes: Any) -> dict[str, Any]:
    return TINY_CONFIG | {"max_position_embeddings": 64, key: entry} | changes


LINEAR = {"rope_type": "linear", "factor": 2}
LINEAR_ROPE = RopeConfig(scaling="linear", factor=2.0, original_max_position=64)


@pytest.mark.parametrize(
    "config",
    [
        scaled({"type": "linear", "factor": 2}),
        scaled(LINEAR),
        scaled({"type": "linear", "rope_type": "linear", "factor": 2.0}),
        scaled(LINEAR, "rope_parameters"),
        scaled(LINEAR, rope_parameters=LINEAR | {"rope_theta": 10000.0}),
    ],
)
def test_linear_scaling_in_every_spelling(tmp_path: Path, config: dict) -> None:
    """BB-06 (vllm#9481, worker-vllm#257)."""
    assert read(tmp_path, config).ropes == (LINEAR_ROPE,)


@pytest.mark.parametrize(
    "entry", [None, {}, {"type": "default"}, {"rope_type": "default"}, {"rope_type": None}]
)
def test_no_scaling_in_every_spelling(tmp_path: Path, entry: Any) -> None:
    """BB-06 (Automodel#2652)."""
    assert read(tmp_path, scaled(entry)).ropes == (RopeConfig(),)


def test_yarn_original_length_defaults_to_max_position(tmp_path: Path) -> None:
    """BB-06 (transformers#36877)."""
    yarn = {"rope_type": "yarn", "factor": 4}
    bare = read(tmp_path, scaled(yarn))
    assert bare == read(tmp_path, scaled(yarn | {"original_max_position_embeddings": 64}))
    assert bare.ropes[0].original_max_position == 64


@pytest.mark.parametrize("kind", ["su2", "mrope", "proportional"])
def test_unknown_rope_types_are_refused(tmp_path: Path, kind: str) -> None:
    """BB-06, last input."""
    with pytest.raises(UnsupportedError, match=kind):
        read(tmp_path, scaled({"rope_type": kind, "factor": 2}))


def test_dynamic_scaling_carries_past_the_positions(tmp_path: Path) -> None:
    config = read(tmp_path, scaled({"type": "dynamic", "factor": 2.5}))
    assert (config.default_context, config.longest_context) == (64, 160)


@pytest.mark.parametrize("kind", ["yarn", "linear"])
def test_a_scaled_rope_carries_past_the_positions(tmp_path: Path, kind: str) -> None:
    """As Qwen's cards have it: a factor, and max_position_embeddings as it was."""
    config = read(tmp_path, scaled({"rope_type": kind, "factor": 4.0}))
    assert (config.default_context, config.longest_context) == (64, 256)
    original = {"original_max_position_embeddings": 16}
    config = read(tmp_path, scaled({"rope_type": kind, "factor": 4.0} | original))
    assert (config.default_context, config.longest_context) == (64, 64)


PHI3 = without(TINY_CONFIG, "head_dim", "attention_bias", "mlp_bias") | {"model_type": "phi3"}


@pytest.mark.parametrize("where", ["beside", "inside"])
def test_partial_rotary_of_a_phi3(tmp_path: Path, where: str) -> None:
    """BB-07: v4 has the fraction beside the rope entry, v5 inside."""
    key = {"partial_rotary_factor": 0.75}
    entry = {"rope_type": "default", "rope_theta": 10000.0}
    if where == "beside":
        config = read(tmp_path, PHI3 | key)
    else:
        config = read(tmp_path, PHI3 | {"rope_parameters": entry | key})
    assert config.ropes == (RopeConfig(rotary_dim=12),)
    with pytest.raises(CheckpointError, match=r"partial_rotary_factor=1\.5"):
        read(tmp_path, PHI3 | {"partial_rotary_factor": 1.5})


def test_longrope_of_a_phi3(tmp_path: Path) -> None:
    entry = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    changes = {"rope_scaling": entry, "original_max_position_embeddings": 64}
    config = read(tmp_path, PHI3 | changes)
    assert config.ropes[0].original_max_position == config.default_context == 64
    assert config.max_position == config.longest_context == 256
    entry["long_factor"] = [4.0] * 7
    with pytest.raises(CheckpointError, match="long_divisors has 7 factors.* must be 8"):
        read(tmp_path, PHI3 | changes)


def test_rope_entries_that_make_no_sense(tmp_path: Path) -> None:
    for entry in ({"factor": 2}, {"rope_type": "linear"}, LINEAR | {"factor": -1}):
        with pytest.raises(CheckpointError, match="factor"):
            read(tmp_path, scaled(entry))
    with pytest.raises(CheckpointError, match="disagree"):
        read(tmp_path, scaled(LINEAR, rope_parameters=LINEAR | {"factor": 4}))
    with pytest.raises(UnsupportedError, match="rope_parameters"):
        read(tmp_path, TINY_GEMMA3_CONFIG | {"rope_parameters": LINEAR})


@pytest.mark.parametrize(
    "change",
    [
        {"partial_rotary_factor": 0.5},
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
    ],
)
def test_partial_rotary_is_refused_where_a_family_has_none(tmp_path: Path, change: dict) -> None:
    """BB-07 (mlx-lm#1698, pie#603)."""
    with pytest.raises(UnsupportedError, match="partial_rotary_factor"):
        read(tmp_path, TINY_CONFIG | change)


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        (2, None, (2,)),
        ([5, 2], None, (2, 5)),
        (2, {"eos_token_id": [7, 2]}, (2, 7)),
        (None, {"eos_token_id": 9}, (9,)),
        (None, {}, ()),
    ],
)
def test_eos_ids_are_a_union(tmp_path: Path, config: Any, generation: Any, expected: tuple) -> None:
    assert (
        read(tmp_path, TINY_CONFIG | {"eos_token_id": config}, generation).eos_token_ids == expected
    )


def test_tie_defaults_to_the_family(tmp_path: Path) -> None:
    """BB-01 (c) (transformers#43429)."""
    assert not read(tmp_path, without(TINY_CONFIG, "tie_word_embeddings")).tie_embeddings
    assert read(tmp_path, TINY_GEMMA3_CONFIG).tie_embeddings


@pytest.mark.parametrize(
    "key", ["model_type", "hidden_size", "num_hidden_layers", "num_attention_heads"]
)
def test_missing_keys_are_named(tmp_path: Path, key: str) -> None:
    with pytest.raises(CheckpointError, match=f"config.json lacks the key '{key}'"):
        read(tmp_path, without(TINY_CONFIG, key))


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": "64"},
        {"num_hidden_layers": 10**9},
        {"num_attention_heads": 0},
        {"vocab_size": 1.5},
        {"num_key_value_heads": 3},
        {"head_dim": 15},
        {"rms_norm_eps": "small"},
        {"rms_norm_eps": float("nan")},
        {"rope_theta": -1},
        {"tie_word_embeddings": "no"},
        {"eos_token_id": "</s>"},
        {"eos_token_id": [-1]},
        {"rope_scaling": "linear"},
        {"rope_scaling": {"rope_type": "linear", "factor": "two"}},
    ],
)
def test_values_of_a_wrong_kind(tmp_path: Path, change: dict) -> None:
    with pytest.raises(CheckpointError):
        read(tmp_path, TINY_CONFIG | change)


@pytest.mark.parametrize(
    "change",
    [
        {"layer_types": ["sliding_attention"] * 3},
        {"sliding_window": None},
        {"sliding_window": "x"},
    ],
)
def test_gemma3_values_that_cannot_be(tmp_path: Path, change: dict) -> None:
    with pytest.raises(CheckpointError):
        read(tmp_path, TINY_GEMMA3_CONFIG | change)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model_type": "mamba"}, "'mamba'"),
        ({"hidden_act": "relu"}, "hidden_act='relu'"),
    ],
)
def test_what_is_not_run_is_refused_by_name(tmp_path: Path, change: dict, told: str) -> None:
    with pytest.raises(UnsupportedError, match=told):
        read(tmp_path, TINY_CONFIG | change)


@pytest.mark.parametrize("act", ["gelu", "gelu_pytorch_tanh"])
def test_the_first_gemma_s_gelu_is_the_tanh_form(tmp_path: Path, act: str) -> None:
    """As in transformers: files of the first release name the exact one."""
    config = TINY_CONFIG | {"model_type": "gemma", "hidden_act": act}
    assert read(tmp_path, without(config, "mlp_bias")).activation == "gelu_tanh"


def test_biases_of_a_llama(tmp_path: Path) -> None:
    plain = read(tmp_path, TINY_CONFIG)
    biased = read(tmp_path, TINY_CONFIG | {"attention_bias": True, "mlp_bias": True})
    assert biased == replace(plain, attention_bias=True, attention_out_bias=True, mlp_bias=True)


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff"])
def test_config_files_that_are_no_object(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match="config.json"):
        read_hf_config(tmp_path)
