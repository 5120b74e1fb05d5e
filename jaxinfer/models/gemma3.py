"""DEV. Gemma 3 (text): window and full layers, two rope bases, q/k norm, four norms a layer."""

from collections.abc import Mapping, Set
from typing import Any

from jaxinfer.config.model_config import ModelConfig
from jaxinfer.config.rope_config import RopeConfig, rope_from_gguf
from jaxinfer.models.config_numbers import real_number, softcap, whole_number
from jaxinfer.models.gemma import gemma_from_gguf
from jaxinfer.models.gemma2 import (
    GEMMA2_DEFAULTS,
    gemma2_from_hf,
    gemma2_layer_leaves,
    gguf_scale,
)
from jaxinfer.models.layer_kinds import gguf_windows, ropes_by_kind
from jaxinfer.models.leaves import norm, outer_leaves
from jaxinfer.models.spec import Architecture
from jaxinfer.models.transformer import forward

# What holds where a file does not say; few GGUF files do.
_FULL_EVERY, _LOCAL_THETA = 6, 10000.0


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
    keys = ("sliding_window_pattern", "_sliding_window_pattern")
    fields = gemma2_from_hf(raw, full_every=whole_number(raw, *keys, default=_FULL_EVERY))
    return fields | _layer_kinds(fields["windows"], *ropes_by_kind(raw))


def _from_gguf(metadata: Mapping[str, Any], names: Set[str]) -> dict[str, Any]:
    theta = real_number(metadata, "gemma3.rope.freq_base_swa", _LOCAL_THETA)
    ropes = rope_from_gguf(metadata, "gemma3"), RopeConfig(theta=theta)
    return {
        **gemma_from_gguf(metadata, names),
        "attention_scale": gguf_scale(metadata, layers_of_27b=62),
        "final_softcap": softcap(metadata, "gemma3.final_logit_softcapping"),
        **_layer_kinds(gguf_windows(metadata, every=_FULL_EVERY), *ropes),
    }


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
    gguf_keys=(
        *("final_logit_softcapping", "attention.sliding_window_pattern"),
        "rope.freq_base_swa",
    ),
    hf_defaults={
        **GEMMA2_DEFAULTS,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": _LOCAL_THETA,
        "max_position_embeddings": 131072,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "sliding_window_pattern": None,
        "_sliding_window_pattern": None,
    },
    from_hf=_from_hf,
    from_gguf=_from_gguf,
    leaves=gemma3_leaves,
    forward=forward,
)
