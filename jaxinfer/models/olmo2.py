"""DEV. OLMo 2: norms only on what a sublayer adds, and on whole queries and keys before heads."""

from collections.abc import Mapping, Set
from typing import Any

from jaxinfer.config.model_config import ModelConfig
from jaxinfer.models.leaves import attention_leaves, gguf_biases, mlp_leaves, norm, outer_leaves
from jaxinfer.models.spec import Architecture
from jaxinfer.models.transformer import forward


def olmo2_leaves(config: ModelConfig) -> dict:
    """The parameters of an OLMo 2."""
    layers = tuple(_layer_leaves(config, layer) for layer in range(config.num_layers))
    return outer_leaves(config) | {"layers": layers}


def _layer_leaves(config: ModelConfig, layer: int) -> dict:
    hf, gguf, width = f"model.layers.{layer}", f"blk.{layer}", config.hidden_size
    wide, narrow = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    out_norms = {
        "attention_out_norm": ("post_attention_layernorm", "post_attention_norm"),
        "mlp_out_norm": ("post_feedforward_layernorm", "post_ffw_norm"),
    }
    return {
        **attention_leaves(config, layer),
        "q_norm": norm(f"{hf}.self_attn.q_norm", f"{gguf}.attn_q_norm", wide),
        "k_norm": norm(f"{hf}.self_attn.k_norm", f"{gguf}.attn_k_norm", narrow),
        **mlp_leaves(config, layer),
        **{
            name: norm(f"{hf}.{theirs}", f"{gguf}.{short}", width)
            for name, (theirs, short) in out_norms.items()
        },
    }


def _from_hf(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "attention_bias": bool(raw["attention_bias"]),
        "attention_out_bias": bool(raw["attention_bias"]),
        "qk_norm": True,
    }


def _from_gguf(metadata: Mapping[str, Any], names: Set[str]) -> dict[str, Any]:
    return {
        **gguf_biases(names),
        "qk_norm": True,
    }


OLMO2 = Architecture(
    name="olmo2",
    hf_model_types=("olmo2",),
    gguf_names=("olmo2",),
    hf_defaults={
        "attention_bias": False,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 2048,
        "eos_token_id": 50279,
    },
    from_hf=_from_hf,
    from_gguf=_from_gguf,
    leaves=olmo2_leaves,
    forward=forward,
)
