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
# What a rope entry may hold. "finetuned" says how a model was made, not how it is run.
_KEYS = frozenset(
    (
        *("rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings"),
        *("partial_rotary_factor", "low_freq_factor", "high_freq_factor"),
        *("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"),
        *("short_factor", "long_factor", "finetuned"),
    )
)
_POSITIVE = ("theta", "factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow")
_POSITIVE += ("attention_factor",)
_MOST_TOKENS = 2**31 - 1  # positions are int32
# A length of 1 has a logarithm of 0, by which longrope divides.
_LEAST_ORIGINAL = {"dynamic": 1, "llama3": 1, "yarn": 1, "longrope": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """A rotary position embedding. Fields that a scaling kind does not use keep their defaults.

    scaling: "dynamic" and "longrope" have two sets of frequencies, one for contexts up to
        `original_max_position` and one for longer ones.
    original_max_position: the trained context, which scaling stretches; 0 without scaling.
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

    def longest_context(self, max_position: int) -> int:
        """Tokens that it reaches in a model whose file gives `max_position`.

        Whether the file's length is the trained or the stretched one, only
        `original_max_position_embeddings` says. Without it, it is the trained one under "linear",
        "dynamic" and "yarn", as transformers has it ("don't update max_position_embeddings"), and
        the stretched one under "llama3" and "longrope", as their checkpoints have it.
        """
        if self.scaling not in ("linear", "dynamic", "yarn"):
            return max_position
        return max(max_position, int(min(self.original_max_position * self.factor, _MOST_TOKENS)))

    def __post_init__(self) -> None:
        self._check_numbers()
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
        if self.scaling == "yarn" and not (self.theta > 1 and self.beta_slow <= self.beta_fast):
            raise CheckpointError(
                f"rope theta={self.theta} must be above 1 under 'yarn', and beta_slow="
                f"{self.beta_slow} at most beta_fast={self.beta_fast}; mend the rope entries of "
                "the checkpoint's config"
            )

    def _check_numbers(self) -> None:
        for name in _POSITIVE:
            if not 0 < getattr(self, name) < math.inf:
                raise CheckpointError(
                    f"rope {name}={getattr(self, name)} must be a positive number; mend the rope "
                    "entries of the checkpoint's config"
                )
        least = _LEAST_ORIGINAL.get(self.scaling, 0)
        if not least <= self.original_max_position <= _MOST_TOKENS:
            raise CheckpointError(
                f"rope original_max_position={self.original_max_position} must be {least} or more "
                f"under {self.scaling!r}, and at most {_MOST_TOKENS}; mend the "
                "original_max_position_embeddings of the checkpoint's config"
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
        UnsupportedError: a rope type or a key that jaxinfer does not implement.
        CheckpointError: a field the type needs is missing, or one is no number that it may be.
    """
    _refuse_unknown(entry)
    name = _type_name(entry)
    if entry.get("partial_rotary_factor") not in (None, 1.0) and not rotary_dim:
        raise UnsupportedError(
            f"partial_rotary_factor={entry['partial_rotary_factor']} is not supported: only 1.0 is"
        )
    fields: dict[str, Any] = {"theta": _number(entry, "rope_theta", theta)}
    fields |= {"scaling": _KIND_NAMES[name], "rotary_dim": rotary_dim}
    original = _original(entry, max_position)
    match fields["scaling"]:
        case "linear":
            fields["factor"] = _needed(entry, "factor", name)
            fields["original_max_position"] = original
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
        "beta_fast": _number(entry, "beta_fast", 32.0),
        "beta_slow": _number(entry, "beta_slow", 1.0),
        "attention_factor": _yarn_attention_factor(entry, factor),
        "truncate": _flag(entry, "truncate", True),
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
    stretch, magnitude = _number(entry, "factor", max_position / original), 1.0
    if stretch > 1.0 and original > 1:
        magnitude = math.sqrt(1 + math.log(stretch) / math.log(original))
    magnitude = _number(entry, "attention_factor", magnitude)
    return {**factors, "original_max_position": original, "attention_factor": magnitude}


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
    if entry.get("short_factor") is None:
        return name or "default"
    if name is not None and _KIND_NAMES[name] not in ("yarn", "longrope"):
        raise CheckpointError(
            f"the rope entry has short_factor beside rope type {name!r}, which has none; "
            "mend the type, or take the factors out"
        )
    # Phi-3 files of the first days say "yarn" where they mean longrope.
    return "longrope"


def _refuse_unknown(entry: Mapping[str, Any]) -> None:
    for key, value in entry.items():
        if isinstance(value, Mapping):
            raise UnsupportedError(
                f"the rope entry has an entry of its own under {key!r}={dict(value)}: this family "
                "is run with one rope for all layers, which is not one for each kind of them"
            )
        if key not in _KEYS and value is not None:
            raise UnsupportedError(
                f"the rope entry has {key}={value!r}, which is not supported; known: "
                f"{', '.join(sorted(_KEYS))}"
            )


def _number(entry: Mapping[str, Any], key: str, default: float) -> float:
    value = default if entry.get(key) is None else entry[key]
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise CheckpointError(
            f"{key}={value!r} of the rope entry must be a positive number; mend the config"
        )
    return float(value)


def _flag(entry: Mapping[str, Any], key: str, default: bool) -> bool:
    if type(entry.get(key, default)) is not bool:
        raise CheckpointError(
            f"{key}={entry[key]!r} of the rope entry must be true or false; mend the config"
        )
    return entry.get(key, default)


def _original(entry: Mapping[str, Any], max_position: int) -> int:
    length = entry.get("original_max_position_embeddings")
    length = max_position if length is None else length
    if type(length) is not int or length < 1:
        raise CheckpointError(
            f"original_max_position_embeddings={length!r} of the rope must be a positive integer; "
            "mend the config"
        )
    return length


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
        "original_max_position_embeddings": metadata.get(f"{prefix}original_context_length")
        or None,
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
    magnitude = yarn_magnitude(factor)
    if entry.get("mscale") and entry.get("mscale_all_dim"):
        scales = [_number(entry, key, 1.0) for key in ("mscale", "mscale_all_dim")]
        magnitude = yarn_magnitude(factor, scales[0]) / yarn_magnitude(factor, scales[1])
    return _number(entry, "attention_factor", magnitude)


def _needed(entry: Mapping[str, Any], key: str, kind: str) -> float:
    if entry.get(key) is None:
        raise CheckpointError(
            f"rope type {kind!r} needs {key!r}, the config's rope entry has only "
            f"{sorted(entry)}; add it to config.json"
        )
    return _number(entry, key, 1.0)
