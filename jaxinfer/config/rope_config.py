"""HOST. One rotary embedding as a record, and how config.json files and GGUF metadata spell it.

Does not compute frequencies: `layers/rope.py` does.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from jaxinfer.errors import CheckpointError, UnsupportedError

RopeScaling = Literal["none", "linear", "llama3", "yarn"]

_KIND_NAMES: dict[str, RopeScaling] = {
    "default": "none",
    "none": "none",
    "linear": "linear",
    "llama3": "llama3",
    "yarn": "yarn",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """A rotary position embedding.

    Fields that a scaling kind does not use keep their defaults. `divisors` (one a frequency, from a
    GGUF file's `rope_freqs.weight`) divide the frequencies after any scaling.
    """

    theta: float = 10000.0
    scaling: RopeScaling = "none"
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True
    divisors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.theta > 0 or not self.factor > 0:
            raise CheckpointError(
                f"rope theta={self.theta} and factor={self.factor} must be positive; "
                "mend the rope entries of the checkpoint's config"
            )
        if self.scaling == "llama3" and not self.low_freq_factor < self.high_freq_factor:
            raise CheckpointError(
                f"rope low_freq_factor={self.low_freq_factor} must be below high_freq_factor="
                f"{self.high_freq_factor}; mend the rope entries of the checkpoint's config"
            )


def rope_from_config(entry: Mapping[str, Any], theta: float, max_position: int) -> RopeConfig:
    """Reads one rope entry (`rope_scaling` of v4 or an entry of v5's `rope_parameters`).

    Args:
        entry: the mapping; may be empty. `rope_type` wins over the older `type`.
        theta: base used where the entry has no `rope_theta` of its own.
        max_position: the model's context, the default of `original_max_position_embeddings`.

    Raises:
        UnsupportedError: a rope type that jaxinfer does not implement.
        CheckpointError: a field the type needs is missing.
    """
    name = _type_name(entry)
    if entry.get("partial_rotary_factor") not in (None, 1.0):
        raise UnsupportedError(
            f"partial_rotary_factor={entry['partial_rotary_factor']} is not supported: only 1.0 is"
        )
    kind, theta = _KIND_NAMES[name], float(entry.get("rope_theta") or theta)
    if kind == "none":
        return RopeConfig(theta=theta)
    factor = _needed(entry, "factor", name)
    if kind == "linear":
        return RopeConfig(theta=theta, scaling=kind, factor=factor)
    original = int(entry.get("original_max_position_embeddings") or max_position)
    if kind == "llama3":
        return RopeConfig(
            theta=theta,
            scaling=kind,
            factor=factor,
            original_max_position=original,
            low_freq_factor=_needed(entry, "low_freq_factor", name),
            high_freq_factor=_needed(entry, "high_freq_factor", name),
        )
    return RopeConfig(
        theta=theta,
        scaling=kind,
        factor=factor,
        original_max_position=original,
        beta_fast=float(entry.get("beta_fast") or 32.0),
        beta_slow=float(entry.get("beta_slow") or 1.0),
        attention_factor=_yarn_attention_factor(entry, factor),
        truncate=bool(entry.get("truncate", True)),
    )


def _type_name(entry: Mapping[str, Any]) -> str:
    name = entry.get("rope_type") or entry.get("type")
    if name is None and entry.get("factor") is not None:
        raise CheckpointError(
            f"the rope entry {dict(entry)} has a factor and no rope_type; add the type"
        )
    if (name or "default") not in _KIND_NAMES:
        raise UnsupportedError(
            f"rope type {name!r} is not supported; supported: {', '.join(sorted(_KIND_NAMES))}"
        )
    return name or "default"


def rope_from_gguf(metadata: Mapping[str, Any], arch: str) -> RopeConfig:
    """Reads the rope keys of a GGUF file: those of the full-attention layers.

    Args:
        metadata: with the scalar `{arch}.context_length`.
        arch: the prefix of the keys.

    Raises:
        UnsupportedError, CheckpointError: as `rope_from_config`.
    """
    prefix = f"{arch}.rope.scaling."
    factor = metadata.get(f"{prefix}factor") or metadata.get(f"{arch}.rope.scale_linear")
    # As llama.cpp reads it, a factor without a type is linear.
    kind = metadata.get(f"{prefix}type") or ("linear" if factor else "none")
    entry = {
        "rope_type": kind,
        "factor": factor,
        "original_max_position_embeddings": metadata.get(f"{prefix}original_context_length"),
        "beta_fast": metadata.get(f"{prefix}yarn_beta_fast"),
        "beta_slow": metadata.get(f"{prefix}yarn_beta_slow"),
    }
    refused = ["yarn_log_multiplier", "yarn_ext_factor", "yarn_attn_factor", "alpha"]
    for key in refused if kind == "yarn" else [*refused, "attn_factor"]:
        if metadata.get(prefix + key) not in (None, 0.0, 1.0, -1.0):
            raise UnsupportedError(f"{prefix}{key}={metadata[prefix + key]} is not supported")
    magnitude = metadata.get(f"{prefix}attn_factor")
    if kind == "yarn" and magnitude is not None:
        entry["attention_factor"] = magnitude * yarn_magnitude(_needed(entry, "factor", "yarn"))
    theta = float(metadata.get(f"{arch}.rope.freq_base", 10000.0))
    return rope_from_config(entry, theta, int(metadata[f"{arch}.context_length"]))


def yarn_magnitude(factor: float, mscale: float = 1.0) -> float:
    """The attention temperature of YaRN for a context stretched by `factor`.

    Source: YaRN (Peng et al. 2023), section 3.4: 0.1 ln(s) + 1.
    """
    return 1.0 if factor <= 1.0 else 0.1 * mscale * math.log(factor) + 1.0


def _yarn_attention_factor(entry: Mapping[str, Any], factor: float) -> float:
    if entry.get("attention_factor") is not None:
        return float(entry["attention_factor"])
    mscale, mscale_all = entry.get("mscale"), entry.get("mscale_all_dim")
    if mscale and mscale_all:
        return yarn_magnitude(factor, mscale) / yarn_magnitude(factor, mscale_all)
    return yarn_magnitude(factor)


def _needed(entry: Mapping[str, Any], key: str, kind: str) -> float:
    if entry.get(key) is None:
        raise CheckpointError(
            f"rope type {kind!r} needs {key!r}, the config's rope entry has only "
            f"{sorted(entry)}; add it to config.json"
        )
    return float(entry[key])
