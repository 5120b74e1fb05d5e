"""DEV. Qwen2 and Qwen2.5: a Llama with biases on q, k and v, and windows in the upper layers."""

from collections.abc import Mapping, Set
from typing import Any

from jaxinfer.config.model_config import ModelConfig
from jaxinfer.models.layer_kinds import upper_windows
from jaxinfer.models.leaves import attention_leaves, mlp_leaves, outer_leaves, pre_norms
from jaxinfer.models.spec import Architecture
from jaxinfer.models.transformer import forward

QWEN_DEFAULTS = {
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
}


def qwen2_leaves(config: ModelConfig) -> dict:
    """The parameters of a Qwen2: a Llama's, q and k in the same order in both formats."""
    layers = tuple(_layer_leaves(config, layer) for layer in range(config.num_layers))
    return outer_leaves(config) | {"layers": layers}


def _layer_leaves(config: ModelConfig, layer: int) -> dict:
    return {
        **pre_norms(config, layer),
        **attention_leaves(config, layer),
        **mlp_leaves(config, layer),
    }


def _from_hf(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {"attention_bias": bool(raw["attention_bias"]), "windows": upper_windows(raw)}


def _from_gguf(metadata: Mapping[str, Any], names: Set[str]) -> dict[str, Any]:
    return {"attention_bias": "blk.0.attn_q.bias" in names}


QWEN2 = Architecture(
    name="qwen2",
    hf_model_types=("qwen2",),
    gguf_names=("qwen2",),
    hf_defaults={**QWEN_DEFAULTS, "attention_bias": True},
    from_hf=_from_hf,
    from_gguf=_from_gguf,
    leaves=qwen2_leaves,
    forward=forward,
)
