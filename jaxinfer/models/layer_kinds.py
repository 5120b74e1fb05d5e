"""DEV. Which layers slide, over how many tokens, and what each kind turns, as config files say it.

Knows the keys that families share, in either generation of config.json and in GGUF files; each
family says what holds where they are absent.
"""

from collections.abc import Callable, Mapping
from typing import Any

from jaxinfer.config.rope_config import RopeConfig, rope_from_config
from jaxinfer.errors import CheckpointError, UnsupportedError
from jaxinfer.models.config_numbers import real_number, whole_number

_KINDS = ("full_attention", "sliding_attention")


def sliding_layers(raw: Mapping[str, Any], otherwise: Callable[[int], bool]) -> tuple[bool, ...]:
    """For each layer, whether it slides: as `layer_types` says, else as `otherwise` does.

    Raises:
        UnsupportedError: a kind of layer that is not run.
    """
    kinds = raw.get("layer_types")
    if not kinds:
        return tuple(otherwise(layer) for layer in range(raw["num_hidden_layers"]))
    for kind in kinds:
        if kind not in _KINDS:
            raise UnsupportedError(
                f"layer_types holds {kind!r}, which is not supported; known: {', '.join(_KINDS)}"
            )
    return tuple(kind == "sliding_attention" for kind in kinds)


def layer_windows(raw: Mapping[str, Any], slides: tuple[bool, ...]) -> tuple[int, ...]:
    """Tokens that each layer sees, 0 for all.

    Raises:
        CheckpointError: layers slide, and there is no window.
    """
    if not any(slides):
        return (0,) * len(slides)
    if not raw.get("sliding_window"):
        raise CheckpointError(
            f"sliding_window={raw.get('sliding_window')} and {slides.count(True)} layers that "
            "slide; give the window's tokens in the config"
        )
    window = whole_number(raw, "sliding_window")
    return tuple(window if slide else 0 for slide in slides)


def upper_windows(raw: Mapping[str, Any]) -> tuple[int, ...]:
    """Windows of a Qwen: with `use_sliding_window`, of the layers from `max_window_layers` on."""
    slides = sliding_layers(raw, lambda layer: layer >= raw["max_window_layers"])
    if not raw["use_sliding_window"] or not raw["sliding_window"]:
        return (0,) * raw["num_hidden_layers"]
    return layer_windows(raw, slides)


def same_windows(raw: Mapping[str, Any]) -> tuple[int, ...]:
    """Windows of a family whose layers all slide where there is a window.

    Raises:
        UnsupportedError: `layer_types` says otherwise.
    """
    window, layers = raw["sliding_window"], raw["num_hidden_layers"]
    slides = sliding_layers(raw, lambda _: bool(window))
    if slides != (bool(window),) * layers:
        raise UnsupportedError(
            f"layer_types has {slides.count(True)} of {layers} layers slide and sliding_window="
            f"{window!r}: {raw['model_type']} is run with all layers sliding or, where there is no "
            "window, none; it is another architecture under that name"
        )
    return layer_windows(raw, slides)


def gguf_windows(
    metadata: Mapping[str, Any], every: int, window: int | None = None
) -> tuple[int, ...]:
    """Windows of a GGUF file in which all layers but each `every`-th slide.

    Its `attention.sliding_window_pattern` goes before that: another such number, or a flag a layer.

    Args:
        window: tokens seen where the file does not say.
    """
    name = metadata["general.architecture"]
    key, layers = f"{name}.attention.sliding_window_pattern", metadata[f"{name}.block_count"]
    slides = metadata.get(key)
    if not isinstance(slides, list):
        every = whole_number(metadata, key, default=every)
        slides = [(layer + 1) % every != 0 for layer in range(layers)]
    if len(slides) != layers or any(slide not in (0, 1) for slide in slides):
        raise CheckpointError(
            f"{key}={slides} must be a number or {layers} flags, one a layer; mend the file"
        )
    key = f"{name}.attention.sliding_window"
    tokens = metadata[key] if window is None else metadata.get(key, window)
    return layer_windows({"sliding_window": tokens}, tuple(map(bool, slides)))


def ropes_by_kind(raw: Mapping[str, Any]) -> tuple[RopeConfig, RopeConfig]:
    """(full layers, window layers), from v5's `rope_parameters` or v4's separate keys.

    Raises:
        UnsupportedError: `rope_parameters` has no such entries.
    """
    position = whole_number(raw, "max_position_embeddings")
    entries = raw.get("rope_parameters") or {}
    if set(entries) - {"full_attention", "sliding_attention"}:
        raise UnsupportedError(
            f"rope_parameters has the keys {sorted(entries)}; this family has one entry for "
            "'full_attention' and one for 'sliding_attention'"
        )
    full = entries.get("full_attention") or raw.get("rope_scaling") or {}
    local = entries.get("sliding_attention") or {}
    return (
        rope_from_config(full, real_number(raw, "rope_theta"), position),
        rope_from_config(local, real_number(raw, "rope_local_base_freq"), position),
    )
