"""DEV. Gemma (the first): a Llama with scaled embeddings, tied, and GELU; norms stored less one."""

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

GEMMA_DEFAULTS = {
    "attention_bias": False,
    "tie_word_embeddings": True,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 8192,
    "head_dim": 256,
    "bos_token_id": 2,
    "eos_token_id": 1,
}


def gemma_leaves(config: ModelConfig) -> dict:
    """The parameters of a Gemma. Hugging Face files hold norm weights minus one."""
    layers = tuple(_layer_leaves(config, layer) for layer in range(config.num_layers))
    return outer_leaves(config, hf_add=1.0) | {"layers": layers}


def _layer_leaves(config: ModelConfig, layer: int) -> dict:
    return {
        **pre_norms(config, layer, hf_add=1.0),
        **attention_leaves(config, layer),
        **mlp_leaves(config, layer),
    }


def gemma_from_hf(raw: Mapping[str, Any]) -> dict[str, Any]:
    """What config.json says of any Gemma beyond the common fields."""
    return {
        "embedding_scale": float(raw["hidden_size"]) ** 0.5,
        "attention_bias": bool(raw["attention_bias"]),
        "attention_out_bias": bool(raw["attention_bias"]),
    }


def gemma_from_gguf(metadata: Mapping[str, Any], names: Set[str]) -> dict[str, Any]:
    """What a GGUF file says of any Gemma beyond the common fields."""
    width = metadata[f"{metadata['general.architecture']}.embedding_length"]
    return {
        "activation": "gelu_tanh",
        "embedding_scale": float(width) ** 0.5,
        **gguf_biases(names),
    }


def _from_hf(raw: Mapping[str, Any]) -> dict[str, Any]:
    # Files of the first release say "gelu" where the tanh form is meant: transformers reads it so.
    exact = raw["hidden_act"] == "gelu" and "hidden_activation" not in raw
    return gemma_from_hf(raw) | ({"activation": "gelu_tanh"} if exact else {})


GEMMA = Architecture(
    name="gemma",
    hf_model_types=("gemma",),
    gguf_names=("gemma",),
    hf_defaults={**GEMMA_DEFAULTS, "hidden_act": "gelu_pytorch_tanh", "num_key_value_heads": 16},
    from_hf=_from_hf,
    from_gguf=gemma_from_gguf,
    leaves=gemma_leaves,
    forward=forward,
)
