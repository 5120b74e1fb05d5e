"""DEV. Mixtral: a Mistral whose mlps are experts; all layers slide where there is a window.

GGUF files of it say `llama`, and hold no window.
"""

from collections.abc import Mapping, Set
from typing import Any

from jaxinfer.config.expert_config import ExpertConfig
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.models.config_numbers import whole_number
from jaxinfer.models.layer_kinds import same_windows
from jaxinfer.models.leaves import (
    ExpertNames,
    attention_leaves,
    expert_leaves,
    outer_leaves,
    pre_norms,
)
from jaxinfer.models.llama import LLAMA
from jaxinfer.models.spec import Architecture
from jaxinfer.models.transformer import forward

_NAMES = ExpertNames(block="block_sparse_moe", gate="w1", up="w3", down="w2")


def mixtral_leaves(config: ModelConfig) -> dict:
    """The parameters of a Mixtral."""
    layers = tuple(_layer_leaves(config, layer) for layer in range(config.num_layers))
    return outer_leaves(config) | {"layers": layers}


def _layer_leaves(config: ModelConfig, layer: int) -> dict:
    return {
        **pre_norms(config, layer),
        **attention_leaves(config, layer, interleaved=True),
        **expert_leaves(config, layer, _NAMES),
    }


def _from_hf(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "windows": same_windows(raw),
        "experts": ExpertConfig(
            num_experts=whole_number(raw, "num_local_experts"),
            num_chosen=whole_number(raw, "num_experts_per_tok"),
            mlp_size=whole_number(raw, "intermediate_size"),
            renormalizes=True,
            is_sparse=(True,) * raw["num_hidden_layers"],
        ),
    }


def _from_gguf(metadata: Mapping[str, Any], names: Set[str]) -> dict[str, Any]:
    experts = ExpertConfig(
        num_experts=whole_number(metadata, "llama.expert_count"),
        num_chosen=whole_number(metadata, "llama.expert_used_count"),
        mlp_size=whole_number(metadata, "llama.feed_forward_length"),
        renormalizes=True,
        is_sparse=(True,) * metadata["llama.block_count"],
    )
    return {**LLAMA.from_gguf(metadata, names), "experts": experts}


MIXTRAL = Architecture(
    name="mixtral",
    hf_model_types=("mixtral",),
    gguf_names=("llama",),
    has_experts=True,
    hf_defaults={
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072,
        "sliding_window": None,
        "layer_types": None,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    from_hf=_from_hf,
    from_gguf=_from_gguf,
    leaves=mixtral_leaves,
    forward=forward,
)
