"""HOST. One rotary embedding as a record, and how config.json files and GGUF metadata spell it.

Does not compute frequencies: `layers/rope.py` does.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jaxinfer.errors import CheckpointError, UnsupportedError

RopeScaling = Literal["none", "linear", "dynamic", "llama3", "yarn", "longrope"]

_KIND_NAMES: dict[str, RopeScaling] = {
    "default": "none",
    "none": "none",
    "linear": "linear",
    "dynamic": "dynamic",
    "llama3": "llama3",
    "yarn": "yarn",
    "longrope": "longrope",
    "su": "longrope",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """A rotary position embedding. Fields that a scaling kind does not use keep their defaults.

    scaling: "dynamic" and "longrope" have two sets of frequencies, one for contexts up to
        `original_max_position` and one for longer ones.
    rotary_dim: leading values of a head that are turned; 0 for all.
    divisors: one a frequency, after any scaling (`rope_freqs.weight` of a GGUF file, or longrope's
        short factors). long_divisors: in their place for longer contexts.
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
    rotary_dim: int = 0
    divisors: tuple[float, ...] = ()
    long_divisors: tuple[float, ...] = ()

    @property
    def depends_on_context(self) -> bool:
        """Whether a longer context has other frequencies."""
        return self.scaling in ("dynamic", "longrope")

    def __post_init__(self) -> None:
        if not self.theta > 0 or not self.factor > 0:
            raise CheckpointError(
                f"rope theta={self.theta} and factor={self.factor} must be positive; "
                "mend the rope entries of the checkpoint's config"
            )
        if self.rotary_dim < 0 or self.rotary_dim % 2:
            raise CheckpointError(
                f"rope rotary_dim={self.rotary_dim} must be even: pairs are turned; mend the "
                "partial_rotary_factor of the checkpoint's config"
            )
        for name in ("divisors", "long_divisors"):
            if not all(0 < value < math.inf for value in getattr(self, name)):
                raise CheckpointError(
                    f"rope {name}={getattr(self, name)} must be positive numbers; mend the factors "
                    "of the checkpoint's rope"
                )
        if self.scaling == "llama3" and not self.low_freq_factor < self.high_freq_factor:
            raise CheckpointError(
                f"rope low_freq_factor={self.low_freq_factor} must be below high_freq_factor="
                f"{self.high_freq_factor}; mend the rope entries of the checkpoint's config"
            )


def rope_from_config(
    entry: Mapping[str, Any], theta: float, max_position: int, *, rotary_dim: int = 0
) -> RopeConfig:
    """Reads one rope entry (`rope_scaling` of v4 or an entry of v5's `rope_parameters`).

    Args:
        entry: the mapping; may be empty. `rope_type` wins over the older `type`.
        theta: base used where the entry has no `rope_theta` of its own.
        max_position: the model's context, the default of `original_max_position_embeddings`.
        rotary_dim: leading values of a head that are turned; 0 for all.

    Raises:
        UnsupportedError: a rope type that jaxinfer does not implement.
        CheckpointError: a field the type needs is missing.
    """
    name = _type_name(entry)
    if entry.get("partial_rotary_factor") not in (None, 1.0) and not rotary_dim:
        raise UnsupportedError(
            f"partial_rotary_factor={entry['partial_rotary_factor']} is not supported: only 1.0 is"
        )
    fields: dict[str, Any] = {"theta": float(entry.get("rope_theta") or theta)}
    fields |= {"scaling": _KIND_NAMES[name], "rotary_dim": rotary_dim}
    original = int(entry.get("original_max_position_embeddings") or max_position)
    match fields["scaling"]:
        case "linear":
            fields["factor"] = _needed(entry, "factor", name)
        case "dynamic":
            fields["factor"] = _needed(entry, "factor", name)
            fields["original_max_position"] = max_position
        case "llama3":
            for key in ("factor", "low_freq_factor", "high_freq_factor"):
                fields[key] = _needed(entry, key, name)
            fields["original_max_position"] = original
        case "yarn":
            fields |= _yarn_fields(entry, original)
        case "longrope":
            fields |= _longrope_fields(entry, original, max_position)
    return RopeConfig(**fields)


def _yarn_fields(entry: Mapping[str, Any], original: int) -> dict[str, Any]:
    factor = _needed(entry, "factor", "yarn")
    return {
        "factor": factor,
        "original_max_position": original,
        "beta_fast": float(entry.get("beta_fast") or 32.0),
        "beta_slow": float(entry.get("beta_slow") or 1.0),
        "attention_factor": _yarn_attention_factor(entry, factor),
        "truncate": bool(entry.get("truncate", True)),
    }


def _longrope_fields(entry: Mapping[str, Any], original: int, max_position: int) -> dict[str, Any]:
    """Source of the attention factor: LongRoPE (Ding et al. 2024), as transformers computes it."""
    factors = {}
    for ours, key in (("divisors", "short_factor"), ("long_divisors", "long_factor")):
        if not isinstance(entry.get(key), list | tuple):
            raise CheckpointError(
                f"rope type 'longrope' needs the list {key!r}, the config's rope entry has "
                f"{entry.get(key)!r}; add it to config.json"
            )
        factors[ours] = tuple(float(value) for value in entry[key])
    magnitude = entry.get("attention_factor")
    if magnitude is None:
        stretch = float(entry.get("factor") or max_position / original)
        magnitude = 1.0
        if stretch > 1.0:
            magnitude = math.sqrt(1 + math.log(stretch) / math.log(original))
    return {**factors, "original_max_position": original, "attention_factor": float(magnitude)}


def rotary_size(head_dim: int, fraction: float) -> int:
    """`rotary_dim` of a partial rotary embedding: 0 where the whole head is turned.

    Raises:
        CheckpointError: a fraction that is not above 0 and at most 1, or too small for a pair.
    """
    if not 0 < fraction <= 1 or int(head_dim * fraction) < 2:
        raise CheckpointError(
            f"partial_rotary_factor={fraction} must be above 0 and at most 1, and leave a pair of "
            f"the head's {head_dim} values to turn; mend the config"
        )
    return 0 if fraction == 1 else int(head_dim * fraction)


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
    # Phi-3 files of the first days say "yarn" where they mean longrope.
    return "longrope" if "short_factor" in entry else name or "default"


def rope_from_gguf(
    metadata: Mapping[str, Any],
    arch: str,
    *,
    rotary_dim: int = 0,
    longrope: tuple[Sequence[float], Sequence[float]] | None = None,
) -> RopeConfig:
    """Reads the rope keys of a GGUF file: those of the full-attention layers.

    Args:
        metadata: with the scalar `{arch}.context_length`.
        arch: the prefix of the keys.
        rotary_dim: leading values of a head that are turned; 0 for all.
        longrope: short and long factors, where the file has them as tensors.

    Raises:
        UnsupportedError, CheckpointError: as `rope_from_config`.
    """
    prefix = f"{arch}.rope.scaling."
    factor = metadata.get(f"{prefix}factor") or metadata.get(f"{arch}.rope.scale_linear")
    # As llama.cpp reads it, a factor without a type is linear.
    kind = metadata.get(f"{prefix}type") or ("linear" if factor else "none")
    kind = "longrope" if longrope else kind
    entry: dict[str, Any] = {
        "rope_type": kind,
        "factor": factor,
        "original_max_position_embeddings": metadata.get(f"{prefix}original_context_length"),
        "beta_fast": metadata.get(f"{prefix}yarn_beta_fast"),
        "beta_slow": metadata.get(f"{prefix}yarn_beta_slow"),
    }
    refused = ["yarn_log_multiplier", "yarn_ext_factor", "yarn_attn_factor", "alpha"]
    for key in refused if kind in ("yarn", "longrope") else [*refused, "attn_factor"]:
        if metadata.get(prefix + key) not in (None, 0.0, 1.0, -1.0):
            raise UnsupportedError(f"{prefix}{key}={metadata[prefix + key]} is not supported")
    magnitude = metadata.get(f"{prefix}attn_factor")
    if kind == "yarn" and magnitude is not None:
        entry["attention_factor"] = magnitude * yarn_magnitude(_needed(entry, "factor", "yarn"))
    if longrope:
        entry |= {"short_factor": tuple(longrope[0]), "long_factor": tuple(longrope[1])}
        entry["attention_factor"] = magnitude
    theta = float(metadata.get(f"{arch}.rope.freq_base", 10000.0))
    context = int(metadata[f"{arch}.context_length"])
    return rope_from_config(entry, theta, context, rotary_dim=rotary_dim)


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
