"""DEV. Gemma 3 (text): window and full layers, two rope bases, q/k norm, four norms a layer."""

from collections.abc import Mapping, Set
from typing import Any

from jaxinfer.config.model_config import ModelConfig
from jaxinfer.config.rope_config import RopeConfig, rope_from_config, rope_from_gguf
from jaxinfer.errors import UnsupportedError
from jaxinfer.models.gemma import GEMMA_DEFAULTS, gemma_from_gguf, gemma_from_hf
from jaxinfer.models.gemma2 import gemma2_layer_leaves
from jaxinfer.models.layer_kinds import layer_windows, sliding_layers
from jaxinfer.models.leaves import norm, outer_leaves
from jaxinfer.models.spec import Architecture
from jaxinfer.models.transformer import forward

# llama.cpp hard-codes both: a GGUF file holds neither.
_GGUF_FULL_EVERY = 6
_LOCAL_THETA = 10000.0


def gemma3_leaves(config: ModelConfig) -> dict:
    """The parameters of a Gemma 3. Hugging Face files hold norm weights minus one."""
    layers = tuple(_layer_leaves(config, layer) for layer in range(config.num_layers))
    return outer_leaves(config, hf_add=1.0) | {"layers": layers}


def _layer_leaves(config: ModelConfig, layer: int) -> dict:
    hf, gguf = f"model.layers.{layer}.self_attn", f"blk.{layer}.attn"
    return {
        **gemma2_layer_leaves(config, layer),
        "q_norm": norm(f"{hf}.q_norm", f"{gguf}_q_norm", config.head_dim, hf_add=1.0),
        "k_norm": norm(f"{hf}.k_norm", f"{gguf}_k_norm", config.head_dim, hf_add=1.0),
    }


def _from_hf(raw: Mapping[str, Any]) -> dict[str, Any]:
    every = int(raw["sliding_window_pattern"] or raw["_sliding_window_pattern"] or 6)
    slides = sliding_layers(raw, lambda layer: (layer + 1) % every != 0)
    return {
        **gemma_from_hf(raw),
        "attention_scale": float(raw["query_pre_attn_scalar"]) ** -0.5,
        "attention_softcap": float(raw["attn_logit_softcapping"] or 0.0),
        "final_softcap": float(raw["final_logit_softcapping"] or 0.0),
        **_layer_kinds(layer_windows(raw, slides), *_ropes(raw)),
    }


def _from_gguf(metadata: Mapping[str, Any], names: Set[str]) -> dict[str, Any]:
    layers = int(metadata["gemma3.block_count"])
    width, heads = metadata["gemma3.embedding_length"], metadata["gemma3.attention.head_count"]
    head_dim = int(metadata.get("gemma3.attention.key_length", width // heads))
    # Only the 27B model (62 layers) scales by hidden/heads; the file does not say so.
    scalar = width // heads if layers == 62 else head_dim
    window = int(metadata["gemma3.attention.sliding_window"])
    windows = tuple(window if (layer + 1) % _GGUF_FULL_EVERY else 0 for layer in range(layers))
    local_rope = RopeConfig(theta=float(metadata.get("gemma3.rope.freq_base_swa", _LOCAL_THETA)))
    return {
        **gemma_from_gguf(metadata, names),
        "attention_scale": float(scalar) ** -0.5,
        "final_softcap": float(metadata.get("gemma3.final_logit_softcapping", 0.0)),
        **_layer_kinds(windows, rope_from_gguf(metadata, "gemma3"), local_rope),
    }


def _ropes(raw: Mapping[str, Any]) -> tuple[RopeConfig, RopeConfig]:
    """(full layers, window layers), from v5's `rope_parameters` or v4's separate keys."""
    position, theta = int(raw["max_position_embeddings"]), float(raw["rope_theta"])
    entries = raw.get("rope_parameters") or {}
    if set(entries) - {"full_attention", "sliding_attention"}:
        raise UnsupportedError(
            f"rope_parameters has the keys {sorted(entries)}; this family has one entry for "
            "'full_attention' and one for 'sliding_attention'"
        )
    full = entries.get("full_attention") or raw.get("rope_scaling") or {}
    local = entries.get("sliding_attention") or {}
    return (
        rope_from_config(full, theta, position),
        rope_from_config(local, float(raw["rope_local_base_freq"]), position),
    )


def _layer_kinds(
    windows: tuple[int, ...], full_rope: RopeConfig, local_rope: RopeConfig
) -> dict[str, Any]:
    return {
        "qk_norm": True,
        "windows": windows,
        "ropes": (full_rope, local_rope),
        "layer_ropes": tuple(1 if window else 0 for window in windows),
    }


GEMMA3 = Architecture(
    name="gemma3",
    hf_model_types=("gemma3_text",),
    gguf_names=("gemma3",),
    gguf_keys=("final_logit_softcapping",),
    hf_defaults={
        **GEMMA_DEFAULTS,
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_theta": 1000000.0,
        "rope_local_base_freq": _LOCAL_THETA,
        "max_position_embeddings": 131072,
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "sliding_window": 4096,
        "sliding_window_pattern": None,
        "_sliding_window_pattern": None,
        "layer_types": None,
        "num_key_value_heads": 4,
    },
    from_hf=_from_hf,
    from_gguf=_from_gguf,
    leaves=gemma3_leaves,
    forward=forward,
)
