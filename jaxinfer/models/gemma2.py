"""DEV. Gemma 2: every other layer slides, scores and logits are capped, four norms a layer."""

from collections.abc import Mapping, Set
from typing import Any

from jaxinfer.config.model_config import ModelConfig
from jaxinfer.models.config_numbers import real_number, softcap
from jaxinfer.models.gemma import GEMMA_DEFAULTS, gemma_from_gguf, gemma_from_hf
from jaxinfer.models.layer_kinds import gguf_windows, layer_windows, sliding_layers
from jaxinfer.models.leaves import attention_leaves, mlp_leaves, norm, outer_leaves
from jaxinfer.models.spec import Architecture
from jaxinfer.models.transformer import forward

GEMMA2_DEFAULTS = {
    **GEMMA_DEFAULTS,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "sliding_window": 4096,
    "layer_types": None,
    "num_key_value_heads": 4,
}


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


def gemma2_from_hf(raw: Mapping[str, Any], full_every: int = 2) -> dict[str, Any]:
    """What config.json says of a Gemma with windows in all layers but each `full_every`-th."""
    slides = sliding_layers(raw, lambda layer: (layer + 1) % full_every != 0)
    return {
        **gemma_from_hf(raw),
        "attention_scale": real_number(raw, "query_pre_attn_scalar") ** -0.5,
        "attention_softcap": softcap(raw, "attn_logit_softcapping"),
        "final_softcap": softcap(raw, "final_logit_softcapping"),
        "windows": layer_windows(raw, slides),
    }


def gguf_scale(metadata: Mapping[str, Any], layers_of_27b: int) -> float:
    """Of scores. Only the 27B model scales by hidden/heads; the file does not say so."""
    name = metadata["general.architecture"]
    width = metadata[f"{name}.embedding_length"] // metadata[f"{name}.attention.head_count"]
    if metadata[f"{name}.block_count"] == layers_of_27b:
        return float(width) ** -0.5
    return real_number(metadata, f"{name}.attention.key_length", width) ** -0.5


def _from_gguf(metadata: Mapping[str, Any], names: Set[str]) -> dict[str, Any]:
    return {
        **gemma_from_gguf(metadata, names),
        "attention_scale": gguf_scale(metadata, layers_of_27b=46),
        "attention_softcap": softcap(metadata, "gemma2.attn_logit_softcapping", 50.0),
        "final_softcap": softcap(metadata, "gemma2.final_logit_softcapping", 30.0),
        "windows": gguf_windows(metadata, every=2, window=4096),
    }


GEMMA2 = Architecture(
    name="gemma2",
    hf_model_types=("gemma2",),
    gguf_names=("gemma2",),
    gguf_keys=(
        *("attn_logit_softcapping", "final_logit_softcapping"),
        "attention.sliding_window_pattern",
    ),
    hf_defaults=GEMMA2_DEFAULTS,
    from_hf=gemma2_from_hf,
    from_gguf=_from_gguf,
    leaves=gemma2_leaves,
    forward=forward,
)
