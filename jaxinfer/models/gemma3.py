"""DEV. Gemma 3 (text): window and full layers, two rope bases, q/k norm, four norms a layer."""

from collections.abc import Mapping, Set
from typing import Any

from jaxinfer.config.model_config import ModelConfig
from jaxinfer.config.rope_config import RopeConfig, rope_from_config, rope_from_gguf
from jaxinfer.errors import CheckpointError, UnsupportedError
from jaxinfer.models.leaves import attention_leaves, mlp_leaves, norm, outer_leaves
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
    hf, gguf = f"model.layers.{layer}", f"blk.{layer}"
    norms = {
        "attention_norm": ("input_layernorm", "attn_norm", config.hidden_size),
        "attention_out_norm": (
            "post_attention_layernorm",
            "post_attention_norm",
            config.hidden_size,
        ),
        "mlp_norm": ("pre_feedforward_layernorm", "ffn_norm", config.hidden_size),
        "mlp_out_norm": ("post_feedforward_layernorm", "post_ffw_norm", config.hidden_size),
        "q_norm": ("self_attn.q_norm", "attn_q_norm", config.head_dim),
        "k_norm": ("self_attn.k_norm", "attn_k_norm", config.head_dim),
    }
    return {
        name: norm(f"{hf}.{theirs}", f"{gguf}.{short}", size, hf_add=1.0)
        for name, (theirs, short, size) in norms.items()
    } | {**attention_leaves(config, layer), **mlp_leaves(config, layer)}


def _from_hf(raw: Mapping[str, Any]) -> dict[str, Any]:
    if raw.get("use_bidirectional_attention"):
        raise UnsupportedError("use_bidirectional_attention=true is not supported: decoders only")
    full = _full_layers(raw)
    full_rope, local_rope = _ropes(raw)
    window = int(raw["sliding_window"] or 0)
    if window < 1 and not all(full):
        raise CheckpointError(
            f"sliding_window={raw['sliding_window']} and {full.count(False)} layers that slide; "
            "give the window's tokens in config.json"
        )
    return {
        **_constants(raw["hidden_size"], raw["query_pre_attn_scalar"]),
        "attention_bias": bool(raw["attention_bias"]),
        "attention_out_bias": bool(raw["attention_bias"]),
        "attention_softcap": float(raw.get("attn_logit_softcapping") or 0.0),
        "final_softcap": float(raw.get("final_logit_softcapping") or 0.0),
        **_layer_kinds(full, window, full_rope, local_rope),
    }


def _from_gguf(metadata: Mapping[str, Any], names: Set[str]) -> dict[str, Any]:
    layers = int(metadata["gemma3.block_count"])
    width, heads = metadata["gemma3.embedding_length"], metadata["gemma3.attention.head_count"]
    head_dim = int(metadata.get("gemma3.attention.key_length", width // heads))
    # Only the 27B model (62 layers) scales by hidden/heads; the file does not say so.
    scalar = width // heads if layers == 62 else head_dim
    full = tuple((layer + 1) % _GGUF_FULL_EVERY == 0 for layer in range(layers))
    window = int(metadata["gemma3.attention.sliding_window"])
    local_rope = RopeConfig(theta=float(metadata.get("gemma3.rope.freq_base_swa", _LOCAL_THETA)))
    return {
        **_constants(width, scalar),
        "activation": "gelu_tanh",
        "attention_bias": "blk.0.attn_q.bias" in names,
        "attention_out_bias": "blk.0.attn_output.bias" in names,
        "final_softcap": float(metadata.get("gemma3.final_logit_softcapping", 0.0)),
        **_layer_kinds(full, window, rope_from_gguf(metadata, "gemma3"), local_rope),
    }


def _constants(hidden_size: int, query_scalar: float) -> dict[str, Any]:
    return {
        "attention_scale": float(query_scalar) ** -0.5,
        "embedding_scale": float(hidden_size) ** 0.5,
        "qk_norm": True,
    }


def _full_layers(raw: Mapping[str, Any]) -> tuple[bool, ...]:
    if raw.get("layer_types"):
        known = {"full_attention", "sliding_attention"}
        for kind in raw["layer_types"]:
            if kind not in known:
                raise UnsupportedError(f"layer type {kind!r} is not supported; known: {known}")
        return tuple(kind == "full_attention" for kind in raw["layer_types"])
    every = int(raw.get("sliding_window_pattern") or raw.get("_sliding_window_pattern") or 6)
    return tuple((layer + 1) % every == 0 for layer in range(raw["num_hidden_layers"]))


def _ropes(raw: Mapping[str, Any]) -> tuple[RopeConfig, RopeConfig]:
    """(full layers, window layers), from v5's `rope_parameters` or v4's separate keys."""
    position, theta = int(raw["max_position_embeddings"]), float(raw["rope_theta"])
    local_theta = float(raw["rope_local_base_freq"])
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
        rope_from_config(local, local_theta, position),
    )


def _layer_kinds(
    full: tuple[bool, ...], window: int, full_rope: RopeConfig, local_rope: RopeConfig
) -> dict[str, Any]:
    return {
        "windows": tuple(0 if is_full else window for is_full in full),
        "ropes": (full_rope, local_rope),
        "layer_ropes": tuple(0 if is_full else 1 for is_full in full),
    }


GEMMA3 = Architecture(
    name="gemma3",
    hf_model_types=("gemma3_text",),
    gguf_names=("gemma3",),
    hf_defaults={
        "attention_bias": False,
        "tie_word_embeddings": True,
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_theta": 1000000.0,
        "rope_local_base_freq": _LOCAL_THETA,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 131072,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "head_dim": 256,
        "num_key_value_heads": 4,
        "bos_token_id": 2,
        "eos_token_id": 1,
    },
    from_hf=_from_hf,
    from_gguf=_from_gguf,
    leaves=gemma3_leaves,
    forward=forward,
)
