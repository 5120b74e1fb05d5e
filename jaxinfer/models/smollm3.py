"""DEV. SmolLM3: a Llama in which every fourth layer has no rotary embedding."""

from collections.abc import Mapping, Sequence, Set
from typing import Any

from jaxinfer.errors import CheckpointError
from jaxinfer.models.config_numbers import whole_number
from jaxinfer.models.layer_kinds import layer_windows, sliding_layers
from jaxinfer.models.llama import LLAMA, llama_leaves
from jaxinfer.models.spec import Architecture
from jaxinfer.models.transformer import forward

_GGUF_INTERVAL = 4  # llama.cpp hard-codes it


def _from_hf(raw: Mapping[str, Any]) -> dict[str, Any]:
    layers, flags = raw["num_hidden_layers"], raw["no_rope_layers"]
    if flags is None:
        flags = _flags(layers, whole_number(raw, "no_rope_layer_interval"))
    if len(flags) < layers or any(flag not in (0, 1) for flag in flags):
        raise CheckpointError(
            f"no_rope_layers has {len(flags)} entries for {layers} layers: {flags!r:.80}; there "
            "must be one a layer (1: rotary embedding, 0: none)"
        )
    slides = sliding_layers(raw, lambda layer: not flags[layer])
    windows = (0,) * layers
    if raw["use_sliding_window"] and raw["sliding_window"]:
        windows = layer_windows(raw, slides)
    return {
        **LLAMA.from_hf(raw),
        "windows": windows,
        "layer_ropes": _layer_ropes(flags[:layers]),
    }


def _flags(layers: int, interval: int) -> list[int]:
    """1 for a layer with a rotary embedding, 0 for one without."""
    return [int((layer + 1) % interval != 0) for layer in range(layers)]


def _layer_ropes(flags: Sequence[int]) -> tuple[int | None, ...]:
    return tuple(0 if flag else None for flag in flags)


def _from_gguf(metadata: Mapping[str, Any], names: Set[str]) -> dict[str, Any]:
    flags = _flags(int(metadata["smollm3.block_count"]), _GGUF_INTERVAL)
    return {
        **LLAMA.from_gguf(metadata, names),
        "layer_ropes": _layer_ropes(flags),
    }


SMOLLM3 = Architecture(
    name="smollm3",
    hf_model_types=("smollm3",),
    gguf_names=("smollm3",),
    hf_defaults={
        **LLAMA.hf_defaults,
        "tie_word_embeddings": True,
        "rope_theta": 2000000.0,
        "max_position_embeddings": 32768,
        "use_sliding_window": False,
        "sliding_window": None,
        "layer_types": None,
        "no_rope_layers": None,
        "no_rope_layer_interval": 4,
        "num_key_value_heads": 4,
        "bos_token_id": 128000,
        "eos_token_id": 128001,
    },
    from_hf=_from_hf,
    from_gguf=_from_gguf,
    leaves=llama_leaves,
    forward=forward,
)
