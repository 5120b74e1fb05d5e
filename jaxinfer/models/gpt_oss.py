"""DEV. gpt-oss: experts with biases and a clamped gate, attention sinks, every second layer slides.

llama.cpp hard-codes the gate and its limit; neither is in its files.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from jaxinfer.config.expert_config import ExpertConfig
from jaxinfer.config.model_config import ClampedSwiglu, ModelConfig
from jaxinfer.config.rope_config import rope_from_gguf
from jaxinfer.models.config_numbers import real_number, whole_number
from jaxinfer.models.layer_kinds import gguf_windows, layer_windows, sliding_layers
from jaxinfer.models.leaves import (
    ExpertNames,
    attention_leaves,
    expert_leaves,
    gguf_biases,
    norm,
    outer_leaves,
)
from jaxinfer.models.spec import Architecture, Leaf
from jaxinfer.models.transformer import forward

_NAMES = ExpertNames("mlp", "gate_proj", "up_proj", "down_proj", router="router")._replace(
    has_biases=True, takes_turns=True, inputs_first=True
)
_SLOPE, _LIMIT = 1.702, 7.0


def gpt_oss_leaves(config: ModelConfig) -> dict:
    """The parameters of a gpt-oss."""
    layers = tuple(_layer_leaves(config, layer) for layer in range(config.num_layers))
    return outer_leaves(config) | {"layers": layers}


def _layer_leaves(config: ModelConfig, layer: int) -> dict:
    hf, gguf, width = f"model.layers.{layer}", f"blk.{layer}", config.hidden_size
    sinks = Leaf(
        role="bias",
        shape=(config.num_heads,),
        axes=("heads",),
        hf=f"{hf}.self_attn.sinks",
        gguf=f"{gguf}.attn_sinks.weight",
    )
    return {
        "attention_norm": norm(f"{hf}.input_layernorm", f"{gguf}.attn_norm", width),
        "mlp_norm": norm(f"{hf}.post_attention_layernorm", f"{gguf}.post_attention_norm", width),
        **attention_leaves(config, layer),
        "sinks": sinks,
        **expert_leaves(config, layer, _NAMES),
    }


def _from_hf(raw: Mapping[str, Any]) -> dict[str, Any]:
    slope, limit = (real_number(raw, f"swiglu_{key}") for key in ("alpha", "limit"))
    keys = ("num_local_experts", "num_experts_per_tok", "intermediate_size")
    return {
        "attention_bias": bool(raw["attention_bias"]),
        "attention_out_bias": bool(raw["attention_bias"]),
        "windows": layer_windows(raw, sliding_layers(raw, lambda layer: layer % 2 == 0)),
        "activation": ClampedSwiglu(slope=slope, limit=limit),
        "experts": _experts(raw, keys, raw["num_hidden_layers"]),
    }


def _from_gguf(metadata: Mapping[str, Any], names: Set[str]) -> dict[str, Any]:
    layers = metadata["gpt-oss.block_count"]
    keys = ("expert_count", "expert_used_count", "expert_feed_forward_length")
    return {
        **gguf_biases(names),
        "windows": gguf_windows(metadata, every=2),
        "activation": ClampedSwiglu(slope=_SLOPE, limit=_LIMIT),
        "ropes": (replace(rope_from_gguf(metadata, "gpt-oss"), truncate=False),),
        "experts": _experts(metadata, [f"gpt-oss.{key}" for key in keys], layers),
    }


def _experts(raw: Mapping[str, Any], keys: Sequence[str], layers: int) -> ExpertConfig:
    count, chosen, size = (whole_number(raw, key) for key in keys)
    sizes = {"num_experts": count, "num_chosen": chosen, "mlp_size": size}
    return ExpertConfig(**sizes, renormalizes=True, is_sparse=(True,) * layers)


GPT_OSS = Architecture(
    name="gpt_oss",
    hf_model_types=("gpt_oss",),
    gguf_names=("gpt-oss",),
    gguf_keys=("attention.sliding_window_pattern",),
    has_experts=True,
    hf_defaults={
        "attention_bias": True,
        "head_dim": 64,
        "num_key_value_heads": 8,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "layer_types": None,
        "swiglu_alpha": _SLOPE,
        "swiglu_limit": _LIMIT,
        "tie_word_embeddings": False,
        "rope_theta": 150000.0,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072,
    },
    from_hf=_from_hf,
    from_gguf=_from_gguf,
    leaves=gpt_oss_leaves,
    forward=forward,
)
