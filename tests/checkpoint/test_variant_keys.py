"""A checkpoint one field away from a family never runs as that family."""

import json
from pathlib import Path

import pytest

from jaxinfer.checkpoint.hf_config import read_hf_config
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.errors import UnsupportedError
from tests.support.tiny_models import TINY_CONFIG, without


def read(folder: Path, config: dict) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(config))
    return read_hf_config(folder)[0]


@pytest.mark.parametrize(
    ("family", "change"),
    [
        ("llama", {"num_local_experts": 8}),
        ("llama", {"residual_multiplier": 0.22}),
        ("llama", {"attn_logit_softcapping": 30.0}),
        ("llama", {"is_causal": False}),
        ("mistral", {"attention_bias": True}),
        ("qwen2", {"num_experts": 60}),
        ("qwen3", {"mlp_bias": True}),
        ("gemma", {"query_pre_attn_scalar": 144}),
        ("gemma2", {"use_bidirectional_attention": True}),
        ("gemma3_text", {"use_bidirectional_attention": True}),
        ("olmo2", {"clip_qkv": 8.0}),
        ("phi3", {"qk_layernorm": True}),
        ("smollm3", {"logits_scaling": 8.0}),
        ("llama", {"no_rope_layer_interval": 4}),
        ("phi3", {"use_sliding_window": True}),
    ],
)
def test_a_field_of_another_architecture_is_refused(
    tmp_path: Path, family: str, change: dict
) -> None:
    """A checkpoint one field away from a family never runs as that family."""
    base = without(TINY_CONFIG, "attention_bias", "mlp_bias") | {"model_type": family}
    read(tmp_path, base)
    ((key, value),) = change.items()
    read(tmp_path, base | {key: None})
    with pytest.raises(UnsupportedError, match=f"{key}={value!r} changes what a model computes"):
        read(tmp_path, base | change)


@pytest.mark.parametrize("family", ["llama", "olmo2", "gemma", "qwen3_moe"])
def test_sliding_layers_are_refused_where_none_do(tmp_path: Path, family: str) -> None:
    base = without(TINY_CONFIG, "attention_bias", "mlp_bias") | {"model_type": family}
    base |= {"num_experts": 4, "num_experts_per_tok": 2} if family == "qwen3_moe" else {}
    read(tmp_path, base | {"layer_types": ["full_attention"] * 2})
    kinds = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 16}
    with pytest.raises(UnsupportedError, match="layer_types=.* full attention in all layers"):
        read(tmp_path, base | kinds)
