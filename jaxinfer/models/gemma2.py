"""DEV. Gemma 2: every other layer slides, scores and logits are capped, four norms a layer."""

from collections.abc import Mapping, Set
from typing import Any

from jaxinfer.config.model_config import ModelConfig
from jaxinfer.models.gemma import GEMMA_DEFAULTS, gemma_from_gguf, gemma_from_hf
from jaxinfer.models.layer_kinds import layer_windows, sliding_layers
from jaxinfer.models.leaves import attention_leaves, mlp_leaves, norm, outer_leaves
from jaxinfer.models.spec import Architecture
from jaxinfer.models.transformer import forward


def gemma2_leaves(config: ModelConfig) -> dict:
    """The parameters of a Gemma 2. Hugging Face files hold norm weights minus one."""
    layers = tuple(gemma2_layer_leaves(config, layer) for layer in range(config.num_layers))
    return outer_leaves(config, hf_add=1.0) | {"layers": layers}


def gemma2_layer_leaves(config: ModelConfig, layer: int) -> dict:
    """One layer: attention and mlp, each with a norm before and after it."""
    hf, gguf = f"model.layers.{layer}", f"blk.{layer}"
    norms = {
        "attention_norm": ("input_layernorm", "attn_norm"),
        "attention_out_norm": ("post_attention_layernorm", "post_attention_norm"),
        "mlp_norm": ("pre_feedforward_layernorm", "ffn_norm"),
        "mlp_out_norm": ("post_feedforward_layernorm", "post_ffw_norm"),
    }
    return {
        name: norm(f"{hf}.{theirs}", f"{gguf}.{short}", config.hidden_size, hf_add=1.0)
        for name, (theirs, short) in norms.items()
    } | {**attention_leaves(config, layer), **mlp_leaves(config, layer)}


def _from_hf(raw: Mapping[str, Any]) -> dict[str, Any]:
    slides = sliding_layers(raw, _slides)
    return {
        **gemma_from_hf(raw),
        "attention_scale": float(raw["query_pre_attn_scalar"]) ** -0.5,
        "attention_softcap": float(raw["attn_logit_softcapping"] or 0.0),
        "final_softcap": float(raw["final_logit_softcapping"] or 0.0),
        "windows": layer_windows(raw, slides),
    }


def _slides(layer: int) -> bool:
    return layer % 2 == 0


def _from_gguf(metadata: Mapping[str, Any], names: Set[str]) -> dict[str, Any]:
    layers = int(metadata["gemma2.block_count"])
    width, heads = metadata["gemma2.embedding_length"], metadata["gemma2.attention.head_count"]
    head_dim = int(metadata.get("gemma2.attention.key_length", width // heads))
    window = int(metadata.get("gemma2.attention.sliding_window", 4096))
    # Only the 27B model (46 layers) scales by hidden/heads; the file does not say so.
    scalar = width // heads if layers == 46 else head_dim
    return {
        **gemma_from_gguf(metadata, names),
        "attention_scale": float(scalar) ** -0.5,
        "attention_softcap": float(metadata.get("gemma2.attn_logit_softcapping", 50.0)),
        "final_softcap": float(metadata.get("gemma2.final_logit_softcapping", 30.0)),
        "windows": tuple(window if _slides(layer) else 0 for layer in range(layers)),
    }


GEMMA2 = Architecture(
    name="gemma2",
    hf_model_types=("gemma2",),
    gguf_names=("gemma2",),
    gguf_keys=("attn_logit_softcapping", "final_logit_softcapping"),
    hf_defaults={
        **GEMMA_DEFAULTS,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "sliding_window": 4096,
        "layer_types": None,
        "num_key_value_heads": 4,
    },
    from_hf=_from_hf,
    from_gguf=_from_gguf,
    leaves=gemma2_leaves,
    forward=forward,
)
