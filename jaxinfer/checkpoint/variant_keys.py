"""HOST. Keys of a config that change what a model computes, and the values that change nothing.

A family that honours such a key lists it among its defaults; in every other family a value that
counts is refused by name: a checkpoint that is one field away from a known architecture must not
run as that architecture. Keys that are in neither place change nothing here, as in transformers.
"""

from collections.abc import Collection, Mapping
from typing import Any

from jaxinfer.errors import UnsupportedError

_OFF = (None, False, 0, 0.0, [], {})
_ONE = (None, 1, 1.0)
# config.json: which values of a key leave the model as it is.
_HF_NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        (
            "alibi",
            "attention_bias",
            "attention_chunk_size",
            "attention_sinks",
            "attn_logit_softcapping",
            "clip_qkv",
            "cross_attention_layers",
            "add_cross_attention",
            "final_logit_softcapping",
            "first_k_dense_replace",
            "is_encoder_decoder",
            "kv_lora_rank",
            "laurel_rank",
            "logit_softcapping",
            "mlp_bias",
            "n_routed_experts",
            "n_shared_experts",
            "num_experts",
            "num_kv_shared_layers",
            "num_local_experts",
            "num_shared_experts",
            "parallel_attn",
            "q_lora_rank",
            "qk_layernorm",
            "qk_norm",
            "qkv_bias",
            "router_bias",
            "shared_expert_intermediate_size",
            "swiglu_alpha",
            "swiglu_limit",
            "use_bias",
            "use_bidirectional_attention",
            "use_expert_bias",
            "use_parallel_residual",
            "use_qk_norm",
            "use_routing_bias",
            "vision_config",
            "zero_expert_num",
        ),
        _OFF,
    ),
    **dict.fromkeys(
        (
            "attention_multiplier",
            "attn_scale",
            "embedding_multiplier",
            "logit_scale",
            "logits_scaling",
            "mup_width_multiplier",
            "partial_rotary_factor",
            "residual_multiplier",
            "rotary_pct",
            "scale_depth",
            "scale_emb",
        ),
        _ONE,
    ),
    "is_causal": (None, True),
    # Routers that choose or weigh otherwise than by the softmax over all experts.
    "n_group": (None, 0, 1),
    "routed_scaling_factor": _ONE,
    "scoring_func": (None, "softmax"),
    "topk_group": (None, 0, 1),
    "topk_method": (None, "greedy"),
    "no_rope_layers": (None, []),
    "no_rope_layer_interval": _OFF,
    "query_pre_attn_scalar": (None,),
    "rope_interleaved": (None, False),
    "use_sliding_window": (None, False),
}
# GGUF, after the architecture's name.
_GGUF_NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        (
            "attention.alibi_bias_max",
            "attention.chunk_size",
            "attention.clamp_kqv",
            "attention.kv_lora_rank",
            "attention.max_alibi_bias",
            "attention.q_lora_rank",
            "attention.shared_kv_layers",
            "attention.sliding_window_pattern",
            "attention.temperature_length",
            "attn_logit_softcapping",
            "embedding_scale",
            "expert_shared_count",
            "expert_shared_feed_forward_length",
            "final_logit_softcapping",
            "leading_dense_block_count",
            "nextn_predict_layers",
            "rope.dimension_sections",
            "use_parallel_residual",
        ),
        _OFF,
    ),
    **dict.fromkeys(
        ("attention.scale", "attention.output_scale", "logit_scale", "residual_scale"),
        (0, 0.0, 1, 1.0),
    ),
    **dict.fromkeys(
        (
            "expert_gating_func",  # 1 is the softmax over all experts
            "expert_group_count",
            "expert_group_used_count",
            "expert_weights_scale",
            "interleave_moe_layer_step",
            "moe_every_n_layers",
        ),
        (0, 0.0, 1, 1.0),
    ),
    "expert_weights_norm": (True,),
}
# Of layers that slide: neutral where they are what all layers have.
_GGUF_SLIDING = {
    f"{key}_swa": key
    for key in (
        *("attention.key_length", "attention.value_length"),
        *("rope.dimension_count", "rope.freq_base"),
    )
}


def refuse_variants(
    raw: Mapping[str, Any], honoured: Collection[str], architecture: str, place: str
) -> None:
    """Refuses keys of a config.json that would change what `architecture` computes.

    Args:
        honoured: keys that the family reads.

    Raises:
        UnsupportedError: such a key, with its value.
    """
    _refuse(raw, _HF_NEUTRAL, honoured, architecture, place)
    kinds = raw.get("layer_types") or []
    if "layer_types" not in honoured and (
        not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds)
    ):
        raise UnsupportedError(
            f"{place}: layer_types={kinds!r}: {architecture} is run with full attention in all "
            "layers; it is another architecture under that name"
        )


def refuse_gguf_variants(
    metadata: Mapping[str, Any], prefix: str, honoured: Collection[str], place: str
) -> None:
    """The same for the metadata of a GGUF file, whose keys begin with `prefix` and a dot."""
    neutral = {f"{prefix}.{key}": values for key, values in _GGUF_NEUTRAL.items()}
    for key, other in _GGUF_SLIDING.items():
        neutral[f"{prefix}.{key}"] = (None, metadata.get(f"{prefix}.{other}"))
    _refuse(metadata, neutral, {f"{prefix}.{key}" for key in honoured}, prefix, place)


def _refuse(
    entries: Mapping[str, Any],
    neutral: Mapping[str, tuple[Any, ...]],
    honoured: Collection[str],
    architecture: str,
    place: str,
) -> None:
    for key, harmless in neutral.items():
        if key in entries and key not in honoured and entries[key] not in harmless:
            raise UnsupportedError(
                f"{place}: {key}={entries[key]!r} changes what a model computes, and "
                f"{architecture} is not run with it; it is another architecture under that name"
            )
