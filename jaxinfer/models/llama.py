"""DEV. Llama and what follows it to the letter (SmolLM2, TinyLlama, …)."""

from collections.abc import Mapping, Set
from typing import Any

from jaxinfer.config.model_config import ModelConfig
from jaxinfer.models.leaves import (
    attention_leaves,
    gguf_biases,
    mlp_leaves,
    outer_leaves,
    pre_norms,
)
from jaxinfer.models.spec import Architecture
from jaxinfer.models.transformer import forward


def llama_leaves(config: ModelConfig) -> dict:
    """The parameters of a Llama: pre-norm attention and gated mlp."""
    layers = tuple(_layer_leaves(config, layer) for layer in range(config.num_layers))
    return outer_leaves(config) | {"layers": layers}


def _layer_leaves(config: ModelConfig, layer: int) -> dict:
    return {
        **pre_norms(config, layer),
        **attention_leaves(config, layer, interleaved=True),
        **mlp_leaves(config, layer),
    }


def _from_hf(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "attention_bias": bool(raw["attention_bias"]),
        "attention_out_bias": bool(raw["attention_bias"]),
        "mlp_bias": bool(raw["mlp_bias"]),
    }


def _from_gguf(metadata: Mapping[str, Any], names: Set[str]) -> dict[str, Any]:
    return {
        **gguf_biases(names),
        "mlp_bias": "blk.0.ffn_gate.bias" in names,
    }


LLAMA = Architecture(
    name="llama",
    hf_model_types=("llama",),
    gguf_names=("llama",),
    hf_defaults={
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 2048,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    from_hf=_from_hf,
    from_gguf=_from_gguf,
    leaves=llama_leaves,
    forward=forward,
)
