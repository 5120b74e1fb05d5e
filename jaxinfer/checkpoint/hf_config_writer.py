"""JOINT. A `ModelConfig` as the config.json of a Hugging Face folder, for models from GGUF files.

What is written is read back and compared: a model that config.json cannot describe is refused.
Knows the families' keys, no tensors.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import numpy as np

from jaxinfer.checkpoint.hf_config import CONFIG_FILE, read_hf_config
from jaxinfer.config.model_config import Activation, ModelConfig
from jaxinfer.config.rope_config import RopeConfig
from jaxinfer.errors import UnsupportedError
from jaxinfer.layers.rope import rope_frequencies

# architecture → (model_type, class)
_TYPES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "llama": ("llama", "LlamaForCausalLM"),
        "mistral": ("mistral", "MistralForCausalLM"),
        "qwen2": ("qwen2", "Qwen2ForCausalLM"),
        "qwen3": ("qwen3", "Qwen3ForCausalLM"),
        "gemma": ("gemma", "GemmaForCausalLM"),
        "gemma2": ("gemma2", "Gemma2ForCausalLM"),
        "gemma3": ("gemma3_text", "Gemma3ForCausalLM"),
        "olmo2": ("olmo2", "Olmo2ForCausalLM"),
        "phi3": ("phi3", "Phi3ForCausalLM"),
        "smollm3": ("smollm3", "SmolLM3ForCausalLM"),
    }
)
_ACTIVATIONS: dict[Activation, str] = {"silu": "silu", "gelu_tanh": "gelu_pytorch_tanh"}
# What Llama 3.1 and 3.2 do to their frequencies; GGUF files hold only what comes out.
_LLAMA3 = tuple(
    RopeConfig(scaling="llama3", factor=factor, original_max_position=8192)
    for factor in (8.0, 32.0)
)


def hf_config_of(config: ModelConfig, weight_dtype: str) -> dict[str, Any]:
    """What config.json of this model says.

    Raises:
        UnsupportedError: the format, or this writer, has no words for something in it.
    """
    if config.architecture not in _TYPES:
        raise UnsupportedError(
            f"no config.json is written for architecture {config.architecture!r}; "
            f"known: {', '.join(_TYPES)}"
        )
    said = _common(config, weight_dtype) | _ropes(config)
    said |= _family(config) | _windows(config)
    _check(config, said)
    return said


def _common(config: ModelConfig, weight_dtype: str) -> dict[str, Any]:
    model_type, name = _TYPES[config.architecture]
    eos = list(config.eos_token_ids)
    return {
        "architectures": [name],
        "model_type": model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.mlp_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": eos[0] if len(eos) == 1 else eos or None,
        "torch_dtype": weight_dtype,
        "use_cache": True,
    }


def _family(config: ModelConfig) -> dict[str, Any]:
    """What the family has beside sizes."""
    is_gemma = config.architecture.startswith("gemma")
    activation = _ACTIVATIONS[config.activation]
    said: dict[str, Any] = {"hidden_act": activation}
    if is_gemma:
        said["hidden_activation"] = activation
    if config.architecture not in ("qwen2", "mistral", "phi3"):
        said["attention_bias"] = config.attention_bias
    if config.architecture in ("llama", "smollm3"):
        said["mlp_bias"] = config.mlp_bias
    if config.architecture in ("gemma2", "gemma3"):
        scalar = config.attention_scale**-2
        said["query_pre_attn_scalar"] = round(scalar) if abs(scalar % 1 - 0.5) > 0.49 else scalar
        said["attn_logit_softcapping"] = config.attention_softcap or None
        said["final_logit_softcapping"] = config.final_softcap or None
    if config.architecture == "smollm3":
        said["no_rope_layers"] = [int(rope is not None) for rope in config.layer_ropes]
    return said


def _windows(config: ModelConfig) -> dict[str, Any]:
    window = max(config.windows)
    if config.architecture in ("llama", "gemma", "olmo2"):
        return {}
    said: dict[str, Any] = {"sliding_window": window or None}
    if config.architecture in ("mistral", "phi3"):
        return said
    kinds = ["sliding_attention" if one else "full_attention" for one in config.windows]
    said["layer_types"] = kinds
    if config.architecture in ("qwen2", "qwen3", "smollm3"):
        said["use_sliding_window"] = bool(window)
    return said


def _ropes(config: ModelConfig) -> dict[str, Any]:
    """Spelt as transformers v4 does, which v5 reads too."""
    rope = config.ropes[0]
    said: dict[str, Any] = {"rope_theta": rope.theta, "rope_scaling": _scaling(rope, config)}
    if rope.scaling == "longrope":
        said["original_max_position_embeddings"] = rope.original_max_position
    if config.architecture == "phi3" and rope.rotary_dim:
        said["partial_rotary_factor"] = rope.rotary_dim / config.head_dim
    if config.architecture == "gemma3":
        said["rope_local_base_freq"] = config.ropes[1].theta
    return said


def _scaling(rope: RopeConfig, config: ModelConfig) -> dict[str, Any] | None:
    if rope.scaling == "longrope":
        return {
            "rope_type": "longrope",
            "short_factor": list(rope.divisors),
            "long_factor": list(rope.long_divisors),
            "attention_factor": rope.attention_factor,
            "original_max_position_embeddings": rope.original_max_position,
        }
    if rope.divisors:
        rope = _named(rope, config.head_dim)
    keys = {
        "linear": ("factor",),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
        "yarn": ("factor", "beta_fast", "beta_slow", "attention_factor", "truncate"),
    }.get(rope.scaling, ())
    if not keys:
        return None
    said: dict[str, Any] = {"rope_type": rope.scaling, **{key: getattr(rope, key) for key in keys}}
    if rope.scaling != "linear" or rope.original_max_position != config.max_position:
        said["original_max_position_embeddings"] = rope.original_max_position
    return said


def _named(rope: RopeConfig, head_dim: int) -> RopeConfig:
    """The kind of scaling that gives the frequencies of a rope with divisors."""
    for kind in _LLAMA3:
        named = replace(kind, theta=rope.theta)
        if _same_turns(rope, named, head_dim):
            return named
    raise UnsupportedError(
        "rope_freqs.weight of the GGUF file is of no scaling that config.json can name; quantize "
        "the model's Hugging Face folder instead"
    )


def _same_turns(one: RopeConfig, other: RopeConfig, head_dim: int) -> bool:
    if one == other:
        return True
    turns = [rope_frequencies(rope, head_dim) for rope in (one, other)]
    same_size = one.attention_factor == other.attention_factor
    return same_size and np.allclose(*turns, rtol=1e-6, atol=0)


def _check(config: ModelConfig, said: Mapping[str, Any]) -> None:
    """Refuses what reads back as another model."""
    with TemporaryDirectory() as folder:
        (Path(folder) / CONFIG_FILE).write_text(json.dumps(said), encoding="utf-8")
        back, _, _ = read_hf_config(Path(folder))
    pairs = list(zip(config.ropes, back.ropes, strict=False))
    if len(config.ropes) == len(back.ropes) and all(
        _same_turns(*pair, config.head_dim) for pair in pairs
    ):
        back = replace(back, ropes=config.ropes)
    wrong = [name for name in config.__slots__ if getattr(back, name) != getattr(config, name)]
    if wrong:
        shown = ", ".join(f"{x}={getattr(config, x)!r}"[:80] for x in wrong[:3])
        raise UnsupportedError(
            f"config.json of a {config.architecture} cannot say {shown}; quantize the model's "
            "Hugging Face folder instead of its GGUF file"
        )
