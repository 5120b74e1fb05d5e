"""DEV. Qwen3 with experts: q/k norm, small experts of which many are chosen, dense layers between.

llama.cpp's `qwen3moe` always makes the shares add up to 1; its files do not say so.
"""

from collections.abc import Mapping, Set
from typing import Any

from jaxinfer.config.expert_config import ExpertConfig
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.errors import CheckpointError
from jaxinfer.models.config_numbers import whole_number
from jaxinfer.models.leaves import ExpertNames, expert_leaves, mlp_leaves, outer_leaves
from jaxinfer.models.qwen3 import qwen3_attention, qwen3_attention_leaves, qwen3_from_gguf
from jaxinfer.models.spec import Architecture
from jaxinfer.models.transformer import forward

_NAMES = ExpertNames(block="mlp", gate="gate_proj", up="up_proj", down="down_proj")


def qwen3_moe_leaves(config: ModelConfig) -> dict:
    """The parameters of a Qwen3-MoE."""
    layers = tuple(_layer_leaves(config, layer) for layer in range(config.num_layers))
    return outer_leaves(config) | {"layers": layers}


def _layer_leaves(config: ModelConfig, layer: int) -> dict:
    is_sparse = config.experts is not None and config.experts.is_sparse[layer]
    mlp = expert_leaves(config, layer, _NAMES) if is_sparse else mlp_leaves(config, layer)
    return {**qwen3_attention_leaves(config, layer), **mlp}


def _from_hf(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Without windows: releases of transformers disagree about which layers would slide."""
    return {
        **qwen3_attention(raw),
        "experts": ExpertConfig(
            num_experts=whole_number(raw, "num_experts", "num_local_experts"),
            num_chosen=whole_number(raw, "num_experts_per_tok"),
            mlp_size=whole_number(raw, "moe_intermediate_size"),
            renormalizes=bool(raw["norm_topk_prob"]),
            is_sparse=_sparse_layers(raw),
        ),
    }


def _sparse_layers(raw: Mapping[str, Any]) -> tuple[bool, ...]:
    """Every `decoder_sparse_step`-th layer that is not in `mlp_only_layers`."""
    layers, step = raw["num_hidden_layers"], whole_number(raw, "decoder_sparse_step")
    dense = raw["mlp_only_layers"]
    if not isinstance(dense, list) or any(
        type(layer) is not int or not 0 <= layer < layers for layer in dense
    ):
        raise CheckpointError(
            f"mlp_only_layers={dense!r} must be a list of layers from 0 to {layers - 1}; mend it"
        )
    return tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(layers))


def _from_gguf(metadata: Mapping[str, Any], names: Set[str]) -> dict[str, Any]:
    layers = range(metadata["qwen3moe.block_count"])
    experts = ExpertConfig(
        num_experts=whole_number(metadata, "qwen3moe.expert_count"),
        num_chosen=whole_number(metadata, "qwen3moe.expert_used_count"),
        mlp_size=whole_number(metadata, "qwen3moe.expert_feed_forward_length"),
        renormalizes=True,
        is_sparse=tuple(f"blk.{layer}.ffn_gate_inp.weight" in names for layer in layers),
    )
    return {**qwen3_from_gguf(metadata, names), "experts": experts}


QWEN3_MOE = Architecture(
    name="qwen3_moe",
    hf_model_types=("qwen3_moe",),
    gguf_names=("qwen3moe",),
    has_experts=True,
    hf_defaults={
        "attention_bias": False,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "decoder_sparse_step": 1,
        "moe_intermediate_size": 768,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
        "mlp_only_layers": [],
        "num_experts": None,
        "num_local_experts": None,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 32768,
    },
    from_hf=_from_hf,
    from_gguf=_from_gguf,
    leaves=qwen3_moe_leaves,
    forward=forward,
)
