"""DEV. Qwen3 (dense): a Qwen2 whose queries and keys are normed a head, biased only on request."""

from collections.abc import Mapping, Set
from typing import Any

from jaxinfer.config.model_config import ModelConfig
from jaxinfer.models.layer_kinds import upper_windows
from jaxinfer.models.leaves import (
    attention_leaves,
    gguf_biases,
    mlp_leaves,
    norm,
    outer_leaves,
    pre_norms,
)
from jaxinfer.models.qwen2 import QWEN_DEFAULTS
from jaxinfer.models.spec import Architecture
from jaxinfer.models.transformer import forward

QWEN3_DEFAULTS = {**QWEN_DEFAULTS, "attention_bias": False, "head_dim": 128}


def qwen3_leaves(config: ModelConfig) -> dict:
    """The parameters of a Qwen3."""
    layers = tuple(
        {**qwen3_attention_leaves(config, layer), **mlp_leaves(config, layer)}
        for layer in range(config.num_layers)
    )
    return outer_leaves(config) | {"layers": layers}


def qwen3_attention_leaves(config: ModelConfig, layer: int) -> dict:
    """One layer without its mlp: both norms, and attention with a norm for q and k."""
    hf, gguf = f"model.layers.{layer}", f"blk.{layer}"
    return {
        **pre_norms(config, layer),
        **attention_leaves(config, layer),
        "q_norm": norm(f"{hf}.self_attn.q_norm", f"{gguf}.attn_q_norm", config.head_dim),
        "k_norm": norm(f"{hf}.self_attn.k_norm", f"{gguf}.attn_k_norm", config.head_dim),
    }


def qwen3_attention(raw: Mapping[str, Any]) -> dict[str, Any]:
    """What config.json says of attention, windows left out."""
    return {
        "attention_bias": bool(raw["attention_bias"]),
        "attention_out_bias": bool(raw["attention_bias"]),
        "qk_norm": True,
    }


def _from_hf(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {**qwen3_attention(raw), "windows": upper_windows(raw)}


def qwen3_from_gguf(metadata: Mapping[str, Any], names: Set[str]) -> dict[str, Any]:
    """What a GGUF file says beyond the common fields."""
    return {
        **gguf_biases(names),
        "qk_norm": True,
    }


QWEN3 = Architecture(
    name="qwen3",
    hf_model_types=("qwen3",),
    gguf_names=("qwen3",),
    hf_defaults=QWEN3_DEFAULTS,
    from_hf=_from_hf,
    from_gguf=qwen3_from_gguf,
    leaves=qwen3_leaves,
    forward=forward,
)
