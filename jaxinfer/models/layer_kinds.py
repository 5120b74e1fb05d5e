"""DEV. Which layers slide and over how many tokens, as config.json says it in either generation.

Knows the keys that families share (`layer_types`, `sliding_window`); each family says what holds
where they are absent.
"""

from collections.abc import Callable, Mapping
from typing import Any

from jaxinfer.errors import CheckpointError, UnsupportedError

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
    window = int(raw.get("sliding_window") or 0)
    if window < 1 and any(slides):
        raise CheckpointError(
            f"sliding_window={raw.get('sliding_window')} and {slides.count(True)} layers that "
            "slide; give the window's tokens in config.json"
        )
    return tuple(window if slide else 0 for slide in slides)


def upper_windows(raw: Mapping[str, Any]) -> tuple[int, ...]:
    """Windows of a Qwen: with `use_sliding_window`, of the layers from `max_window_layers` on."""
    slides = sliding_layers(raw, lambda layer: layer >= raw["max_window_layers"])
    if not raw["use_sliding_window"] or not raw["sliding_window"]:
        return (0,) * raw["num_hidden_layers"]
    return layer_windows(raw, slides)


def same_windows(raw: Mapping[str, Any]) -> tuple[int, ...]:
    """Windows of a family whose layers all slide where there is a window."""
    return layer_windows(raw, (bool(raw["sliding_window"]),) * raw["num_hidden_layers"])
