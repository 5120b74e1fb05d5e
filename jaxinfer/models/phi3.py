"""DEV. Phi-3 and Phi-4-mini: a Llama whose files fuse q, k and v, and gate and up.

They are split at load. Rotary embeddings may be partial and of LongRoPE.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from jaxinfer.config.model_config import ModelConfig
from jaxinfer.layers.weights import Weight
from jaxinfer.models.layer_kinds import layer_windows, same_windows
from jaxinfer.models.leaves import attention_leaves, mlp_leaves, outer_leaves, pre_norms
from jaxinfer.models.spec import Architecture
from jaxinfer.models.transformer import forward


def phi3_leaves(config: ModelConfig) -> dict:
    """The parameters of a Phi-3."""
    layers = tuple(_layer_leaves(config, layer) for layer in range(config.num_layers))
    return outer_leaves(config) | {"layers": layers}


def _layer_leaves(config: ModelConfig, layer: int) -> dict:
    hf, gguf = f"model.layers.{layer}", f"blk.{layer}"
    attention, mlp = attention_leaves(config, layer), mlp_leaves(config, layer)
    return {
        **pre_norms(config, layer),
        **attention,
        **_fused(attention, "qkv", f"{hf}.self_attn.qkv_proj", f"{gguf}.attn_qkv"),
        **mlp,
        **_fused(mlp, ("gate", "up"), f"{hf}.mlp.gate_up_proj", f"{gguf}.ffn_up"),
    }


def _fused(leaves: dict, names: Sequence[str], hf: str, gguf: str) -> dict:
    """The matrices `names` as rows, in this order, of one tensor."""
    parts = [leaves[name].value for name in names]
    total, first, fused = sum(part.shape[0] for part in parts), 0, {}
    for name, part in zip(names, parts, strict=True):
        place = {"hf": f"{hf}.weight", "gguf": f"{gguf}.weight", "first_row": first}
        fused[name] = Weight(value=replace(part, stored_rows=total, **place))
        first += part.shape[0]
    return fused


def _from_hf(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {"windows": same_windows(raw)}


def _from_gguf(metadata: Mapping[str, Any], names: Set[str]) -> dict[str, Any]:
    window, layers = metadata.get("phi3.attention.sliding_window"), metadata["phi3.block_count"]
    return {"windows": layer_windows({"sliding_window": window}, (bool(window),) * layers)}


PHI3 = Architecture(
    name="phi3",
    hf_model_types=("phi3",),
    gguf_names=("phi3",),
    hf_defaults={
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "partial_rotary_factor": 1.0,
        "sliding_window": None,
        "layer_types": None,
        "bos_token_id": 1,
        "eos_token_id": 32000,
    },
    from_hf=_from_hf,
    from_gguf=_from_gguf,
    leaves=phi3_leaves,
    forward=forward,
)
