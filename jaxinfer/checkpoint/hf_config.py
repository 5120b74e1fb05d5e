"""JOINT. A Hugging Face folder's config.json, of transformers v4 or v5, as a `ModelConfig`.

Knows how the two generations spell what every family has; what a family has of its own is read by
its file in `models/`. Reads no tensor.
"""

from pathlib import Path
from typing import Any

from jaxinfer.checkpoint.config_reader import ConfigReader
from jaxinfer.checkpoint.json_file import read_json
from jaxinfer.checkpoint.variant_keys import refuse_variants
from jaxinfer.config.model_config import Activation, ModelConfig
from jaxinfer.config.rope_config import RopeConfig, rope_from_config, rotary_size
from jaxinfer.errors import CheckpointError, UnsupportedError
from jaxinfer.models.registry import architecture_for_hf
from jaxinfer.models.spec import Architecture

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}
# Where null says something else than an absent key does.
_NULL_COUNTS = ("bos_token_id", "eos_token_id", "sliding_window")


def read_hf_config(folder: Path) -> tuple[ModelConfig, Architecture, dict[str, Any]]:
    """Config, architecture and the raw config.json of a folder.

    Raises:
        CheckpointError: a file or a needed key is missing, or a value breaks its rule.
        UnsupportedError: an architecture, activation, rope type or variant of a family that is not
            run. What a quantization says is read by `quant_formats/quant_config.py`.
    """
    path = folder / CONFIG_FILE
    raw = ConfigReader(read_json(path), str(path))
    architecture = architecture_for_hf(raw["model_type"])
    merged = _with_defaults(raw, architecture)
    refuse_variants(raw, architecture.hf_defaults, architecture.name, str(path))
    try:
        fields = _common_fields(merged) | architecture.from_hf(merged)
        if "activation" not in fields:
            fields["activation"] = _activation(merged)
        if "ropes" not in fields:
            fields["ropes"] = (_rope(merged, fields["head_dim"]),)
        config = ModelConfig(
            architecture=architecture.name,
            bos_token_id=next(iter(merged.token_ids("bos_token_id")), None),
            eos_token_ids=_eos_token_ids(folder, merged),
            **fields,
        )
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise CheckpointError(f"{path} holds a value of a wrong kind: {error}; mend it") from error
    return config, architecture, dict(raw)


def read_generation_config(folder: Path) -> dict[str, Any]:
    """What generation_config.json holds; nothing where there is none."""
    path = folder / GENERATION_FILE
    return read_json(path) if path.is_file() else {}


def _with_defaults(raw: ConfigReader, architecture: Architecture) -> ConfigReader:
    """Absent and null keys replaced by what they mean in this family."""
    given = {key: value for key, value in raw.items() if value is not None or key in _NULL_COUNTS}
    return ConfigReader({**architecture.hf_defaults, **given}, raw.place)


def _common_fields(raw: ConfigReader) -> dict[str, Any]:
    layers, heads = raw.num_layers("num_hidden_layers"), raw.whole("num_attention_heads")
    head_dim = _head_dim(raw, heads)
    return {
        "vocab_size": raw.whole("vocab_size"),
        "hidden_size": raw.whole("hidden_size"),
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": raw.whole("num_key_value_heads") if "num_key_value_heads" in raw else heads,
        "head_dim": head_dim,
        "mlp_size": raw.whole("intermediate_size"),
        "max_position": raw.whole("max_position_embeddings"),
        "norm_eps": raw.number("rms_norm_eps"),
        "windows": (0,) * layers,
        "layer_ropes": (0,) * layers,
        "attention_scale": head_dim**-0.5,
        "tie_embeddings": raw.flag("tie_word_embeddings"),
    }


def _head_dim(raw: ConfigReader, heads: int) -> int:
    if "head_dim" in raw:
        return raw.whole("head_dim")
    width = raw.whole("hidden_size")
    if width % heads:
        raise CheckpointError(
            f"{raw.place}: hidden_size={width} is no multiple of num_attention_heads={heads} and "
            "there is no head_dim; add head_dim"
        )
    return width // heads


def _activation(raw: ConfigReader) -> Activation:
    key = "hidden_activation" if "hidden_activation" in raw else "hidden_act"
    if raw[key] not in _ACTIVATIONS:
        raise UnsupportedError(
            f"{raw.place}: {key}={raw[key]!r} is not supported; known: {', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[raw[key]]


def _rope(raw: ConfigReader, head_dim: int) -> RopeConfig:
    """The one rope of a family without per-layer ones; v4 and v5 spellings must agree."""
    theta, position = raw.number("rope_theta"), raw.whole("max_position_embeddings")
    entries = [raw[key] for key in ("rope_parameters", "rope_scaling") if raw.get(key)]
    ropes = []
    for entry in entries or [{}]:
        fraction = entry.get("partial_rotary_factor") or raw.get("partial_rotary_factor", 1.0)
        turned = rotary_size(head_dim, fraction) if "partial_rotary_factor" in raw else 0
        # A length beside the entry goes before one in it, as transformers has it for Phi-3.
        original = raw.get("original_max_position_embeddings")
        entry = {**entry, "original_max_position_embeddings": original} if original else entry
        ropes.append(rope_from_config(entry, theta, position, rotary_dim=turned))
    if ropes[0] != ropes[-1]:
        raise CheckpointError(
            f"{raw.place}: rope_parameters={entries[0]} and rope_scaling={entries[-1]} disagree; "
            "keep one of them"
        )
    return ropes[0]


def _eos_token_ids(folder: Path, raw: ConfigReader) -> tuple[int, ...]:
    generation = ConfigReader(read_generation_config(folder), str(folder / GENERATION_FILE))
    ids = {*raw.token_ids("eos_token_id"), *generation.token_ids("eos_token_id")}
    return tuple(sorted(ids))
