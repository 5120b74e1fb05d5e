"""GGUF metadata as a ModelConfig, and the cases where others read it wrong."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxinfer.checkpoint.gguf_config import read_gguf_config
from jaxinfer.checkpoint.gguf_file import open_gguf
from jaxinfer.checkpoint.hf_config import read_hf_config
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.config.rope_config import RopeConfig
from jaxinfer.errors import CheckpointError, UnsupportedError
from tests.support.gguf_writer import write_gguf
from tests.support.tiny_models import TINY_GEMMA3_CONFIG, write_tiny, write_tiny_gguf

FIXTURES = Path(__file__).parents[1] / "data/quant"


def read(path: Path) -> ModelConfig:
    source = open_gguf(path)
    return read_gguf_config(source.metadata, source)[0]


def tiny(folder: Path, **options: Any) -> ModelConfig:
    return read(write_tiny_gguf(folder / "m.gguf", **options))


def rounded(config: ModelConfig) -> ModelConfig:
    """GGUF keeps the epsilon in float32."""
    return replace(config, norm_eps=float(np.float32(config.norm_eps)))


def with_config(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if (path / "hf_config.json").exists()]


@pytest.mark.parametrize("folder", with_config(FIXTURES), ids=lambda path: path.name)
def test_metadata_says_what_config_json_says(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "config.json").write_bytes((folder / "hf_config.json").read_bytes())
    assert read(folder / "model.gguf") == rounded(read_hf_config(tmp_path)[0])


@pytest.mark.parametrize("base", [{}, {"base": TINY_GEMMA3_CONFIG}])
def test_tiny_models_say_the_same_in_both_forms(tmp_path: Path, base: dict) -> None:
    hf = read_hf_config(write_tiny(tmp_path / "hf", **base))[0]
    assert tiny(tmp_path, **base) == rounded(hf)


def test_head_size_comes_from_three_places(tmp_path: Path) -> None:
    lengths = ("llama.attention.key_length", "llama.attention.value_length")
    assert read(FIXTURES / "gguf_llama_headdim_f32/model.gguf").head_dim == 24
    assert tiny(tmp_path, drop_keys=lengths).head_dim == 16
    assert tiny(tmp_path, drop_keys=(*lengths, "llama.rope.dimension_count")).head_dim == 16


def test_tied_is_the_absence_of_the_head(tmp_path: Path) -> None:
    """BB-09 (mistral.rs#798, llama.cpp#5824)."""
    assert tiny(tmp_path, drop=["output.weight"]).tie_embeddings
    assert not tiny(tmp_path).tie_embeddings
    head = {"output.weight": np.zeros((320, 64), np.float32)}
    assert not tiny(tmp_path, base=TINY_GEMMA3_CONFIG, add=head).tie_embeddings


KV = "llama.attention.head_count_kv"


@pytest.mark.parametrize("value", [2, [2, 2]])
def test_kv_heads_as_number_or_list(tmp_path: Path, value: Any) -> None:
    """BB-10 (FreeToken#63, gguf-parser-go#31)."""
    assert tiny(tmp_path, metadata={KV: value}).num_kv_heads == 2


def test_kv_heads_absent_are_all_heads(tmp_path: Path) -> None:
    """BB-10 (picolm#20)."""
    assert tiny(tmp_path, num_key_value_heads=4, drop_keys=[KV]).num_kv_heads == 4


def test_kv_heads_that_differ_are_refused(tmp_path: Path) -> None:
    """BB-10 (koboldcpp#1191): never element 0."""
    with pytest.raises(UnsupportedError, match=rf"{KV}=\[2, 1\]"):
        tiny(tmp_path, metadata={KV: [2, 1]})
    with pytest.raises(CheckpointError, match="3 entries"):
        tiny(tmp_path, metadata={KV: [2, 2, 2]})


def test_divisors_are_read(tmp_path: Path) -> None:
    """BB-11 (a) (llama.cpp#8650, candle#2918)."""
    divisors = np.array([1, 1, 2, 4, 8, 8, 8, 8], np.float32)
    config = tiny(tmp_path, add={"rope_freqs.weight": divisors})
    assert config.ropes == (RopeConfig(divisors=(1.0, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0)),)


@pytest.mark.parametrize("values", [[1.0] * 7, [0.0] * 8, [float("nan")] * 8])
def test_divisors_that_cannot_be(tmp_path: Path, values: list) -> None:
    with pytest.raises(CheckpointError, match="rope_freqs.weight"):
        tiny(tmp_path, add={"rope_freqs.weight": np.array(values, np.float32)})


def test_gemma3_windows_keep_their_own_base(tmp_path: Path) -> None:
    """BB-11 (b) (llama.cpp#14367): window layers were given the global base."""
    config = tiny(tmp_path, base=TINY_GEMMA3_CONFIG)
    assert config.ropes == (RopeConfig(theta=1e6), RopeConfig(theta=10000.0))
    assert config.layer_ropes == (1, 1, 1, 1, 1, 0, 1)


def test_gemma3_scaling_is_of_full_layers_only(tmp_path: Path) -> None:
    """BB-11 (c) (ferrox#39)."""
    scaling = {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0}
    config = tiny(tmp_path, base=TINY_GEMMA3_CONFIG, metadata=scaling)
    assert config.ropes[0] == RopeConfig(
        theta=1e6, scaling="linear", factor=8.0, original_max_position=256
    )
    assert config.ropes[1] == RopeConfig(theta=10000.0)


def test_rope_scaling_of_a_llama(tmp_path: Path) -> None:
    prefix = "llama.rope.scaling."
    yarn = {f"{prefix}type": "yarn", f"{prefix}factor": 4.0}
    expected = RopeConfig(
        scaling="yarn",
        factor=4.0,
        original_max_position=64,
        attention_factor=1 + 0.1 * np.log(4.0),
    )
    original = {f"{prefix}original_context_length": 64}
    assert tiny(tmp_path, metadata=yarn | original).ropes == (expected,)
    assert tiny(tmp_path, metadata=yarn).ropes[0].original_max_position == 256
    linear = RopeConfig(scaling="linear", factor=2.0, original_max_position=256)
    for keys in ({"llama.rope.scale_linear": 2.0}, {f"{prefix}factor": 2.0}):
        assert tiny(tmp_path, metadata=keys).ropes == (linear,)
    with pytest.raises(CheckpointError, match="longrope"):
        tiny(tmp_path, metadata=yarn | {f"{prefix}type": "longrope"})
    with pytest.raises(UnsupportedError, match="yarn_log_multiplier"):
        tiny(tmp_path, metadata=yarn | {f"{prefix}yarn_log_multiplier": 0.1})


def test_yarn_carries_past_the_context_length(tmp_path: Path) -> None:
    scaling = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}
    config = tiny(tmp_path, metadata=scaling)
    assert (config.default_context, config.longest_context) == (256, 1024)


PATTERN = "gemma3.attention.sliding_window_pattern"


@pytest.mark.parametrize(
    ("pattern", "windows"),
    [
        (6, (8, 8, 8, 8, 8, 0, 8)),
        (2, (8, 0, 8, 0, 8, 0, 8)),
        (1, (0,) * 7),
        ([True, False] * 3 + [False], (8, 0, 8, 0, 8, 0, 0)),
    ],
)
def test_a_gemma3_s_pattern_of_windows_is_read(tmp_path: Path, pattern: Any, windows: Any) -> None:
    """It was ignored: as a number, and as a flag a layer."""
    config = tiny(tmp_path, base=TINY_GEMMA3_CONFIG, metadata={PATTERN: pattern})
    assert config.windows == windows
    assert config.layer_ropes == tuple(int(window > 0) for window in windows)


@pytest.mark.parametrize("pattern", [0, 2.5, [True], [True] * 8, [2] * 7])
def test_a_pattern_of_windows_that_cannot_be(tmp_path: Path, pattern: Any) -> None:
    with pytest.raises(CheckpointError, match=PATTERN):
        tiny(tmp_path, base=TINY_GEMMA3_CONFIG, metadata={PATTERN: pattern})


@pytest.mark.parametrize("key", ["freq_base_swa", "dimension_count_swa"])
def test_a_rope_of_sliding_layers_is_that_of_all(tmp_path: Path, key: str) -> None:
    whole = {"llama.rope.freq_base": 10000.0, "llama.rope.dimension_count": 16}
    name = f"llama.rope.{key}"
    same = {name: whole[name.removesuffix("_swa")]}
    assert tiny(tmp_path, metadata=whole | same) == tiny(tmp_path, metadata=whole)
    with pytest.raises(UnsupportedError, match=f"{name}=5"):
        tiny(tmp_path, metadata=whole | {name: 5})


def phi3(folder: Path, *, add: dict | None = None, **metadata: Any) -> ModelConfig:
    """A file that says phi3; of its tensors only the layers' numbers and the embedding count."""
    path = folder / "phi3.gguf"
    keys = {
        "block_count": 1,
        "context_length": 128,
        "embedding_length": 40,
        "feed_forward_length": 48,
        "attention.head_count": 4,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    values = {f"phi3.{key}": value for key, value in (keys | metadata).items()}
    tensors = {name: np.zeros((8, 40), np.float32) for name in ("token_embd.weight", "blk.0.x")}
    return read(write_gguf(path, {"general.architecture": "phi3"} | values, tensors | (add or {})))


def test_a_phi3_may_turn_part_of_its_heads(tmp_path: Path) -> None:
    """BB-07: `rope.dimension_count` is not the head size there."""
    assert phi3(tmp_path).ropes == (RopeConfig(),)
    partial = phi3(tmp_path, **{"rope.dimension_count": 8})
    assert partial.head_dim == 10 and partial.ropes == (RopeConfig(rotary_dim=8),)
    with pytest.raises(CheckpointError, match="rotary_dim=12 must be at most head_dim=10"):
        phi3(tmp_path, **{"rope.dimension_count": 12})


def test_longrope_factors_are_tensors(tmp_path: Path) -> None:
    short, long = np.array([1, 1.5, 2, 2.5, 3], np.float32), np.full(5, 4, np.float32)
    add = {"rope_factors_short.weight": short, "rope_factors_long.weight": long}
    keys = {"rope.scaling.original_context_length": 32, "rope.scaling.attn_factor": 1.25}
    config = phi3(tmp_path, add=add, **keys)
    assert config.ropes == (
        RopeConfig(
            scaling="longrope",
            original_max_position=32,
            attention_factor=1.25,
            divisors=(1.0, 1.5, 2.0, 2.5, 3.0),
            long_divisors=(4.0,) * 5,
        ),
    )
    assert config.default_context == 32
    with pytest.raises(CheckpointError, match="rope_factors_long.weight has shape"):
        phi3(tmp_path, add=add | {"rope_factors_long.weight": long[:4]}, **keys)


@pytest.mark.parametrize("declared", [1, 4])
def test_block_count_must_agree_with_the_tensors(tmp_path: Path, declared: int) -> None:
    """BB-03 (d) (imp#1312): declared layers were loaded empty."""
    with pytest.raises(CheckpointError, match=f"block_count={declared}.* 2 layers"):
        tiny(tmp_path, metadata={"llama.block_count": declared})


def test_fewer_tokens_than_rows_are_fine(tmp_path: Path) -> None:
    """BB-27 (vllm#340, llama.cpp#5910)."""
    tokens = {"tokenizer.ggml.tokens": [f"t{i}" for i in range(300)]}
    assert tiny(tmp_path, metadata=tokens, drop_keys=["llama.vocab_size"]).vocab_size == 320


def test_more_tokens_than_rows_are_refused(tmp_path: Path) -> None:
    """BB-27, last input: with both numbers."""
    tokens = {"tokenizer.ggml.tokens": [f"t{i}" for i in range(336)]}
    with pytest.raises(CheckpointError, match="336 tokens.* 320 rows"):
        tiny(tmp_path, metadata=tokens)


def test_eos_ids_are_a_union(tmp_path: Path) -> None:
    assert tiny(tmp_path, metadata={"tokenizer.ggml.eot_token_id": 7}).eos_token_ids == (2, 7)


def test_biases_are_seen_by_their_tensors(tmp_path: Path) -> None:
    config = tiny(tmp_path, attention_bias=True, mlp_bias=True)
    assert config.attention_bias and config.attention_out_bias and config.mlp_bias


@pytest.mark.parametrize(
    ("metadata", "told"),
    [
        ({"general.architecture": "rwkv"}, "'rwkv'"),
        ({"llama.expert_shared_count": 1}, "llama.expert_shared_count=1"),
        ({"llama.rope.dimension_count": 8}, "rope.dimension_count=8"),
        ({"llama.attention.value_length": 8}, "value_length=8"),
        ({"llama.attention.causal": False}, "causal"),
        ({"llama.attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50"),
        ({"llama.residual_scale": 0.5}, "residual_scale=0.5"),
        ({"llama.attention.clamp_kqv": 8.0}, "clamp_kqv=8"),
        ({"llama.attention.sliding_window_pattern": 4}, "sliding_window_pattern=4"),
        ({"llama.rope.dimension_sections": [2, 3, 3, 0]}, r"dimension_sections=\[2, 3, 3, 0\]"),
    ],
)
def test_what_is_not_run_is_refused_by_name(tmp_path: Path, metadata: dict, told: str) -> None:
    with pytest.raises(UnsupportedError, match=told):
        tiny(tmp_path, metadata=metadata)


@pytest.mark.parametrize(
    "key",
    [
        "general.architecture",
        "llama.block_count",
        "llama.context_length",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "llama.attention.layer_norm_rms_epsilon",
    ],
)
def test_missing_keys_are_named(tmp_path: Path, key: str) -> None:
    with pytest.raises(CheckpointError, match=f"lacks the key '{key}'"):
        tiny(tmp_path, drop_keys=[key])


def test_missing_window_of_a_gemma3_is_named(tmp_path: Path) -> None:
    key = "gemma3.attention.sliding_window"
    with pytest.raises(CheckpointError, match=key):
        tiny(tmp_path, base=TINY_GEMMA3_CONFIG, drop_keys=[key])


@pytest.mark.parametrize(
    "metadata",
    [
        {"llama.block_count": "two"},
        {"llama.block_count": 10**9},
        {"llama.embedding_length": 0},
        {"llama.attention.head_count": []},
        {"llama.rope.freq_base": "high"},
        {"llama.rope.scaling.type": 3},
        {"tokenizer.ggml.tokens": 5},
        {"tokenizer.ggml.eos_token_id": "x"},
    ],
)
def test_values_of_a_wrong_kind(tmp_path: Path, metadata: dict) -> None:
    metadata = {k: np.zeros(0, np.int32) if v == [] else v for k, v in metadata.items()}
    with pytest.raises((CheckpointError, UnsupportedError)):
        tiny(tmp_path, metadata=metadata)


def test_missing_embedding_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="token_embd.weight"):
        tiny(tmp_path, drop=["token_embd.weight"])
