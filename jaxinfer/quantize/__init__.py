"""Makes quantized checkpoints of float ones, and judges them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxinfer.quantize.make import QuantizedModel, quantize_model
    from jaxinfer.quantize.recipe import Recipe

_HOMES = {
    "QuantizedModel": "jaxinfer.quantize.make",
    "Recipe": "jaxinfer.quantize.recipe",
    "quantize_model": "jaxinfer.quantize.make",
}

__all__ = ["QuantizedModel", "Recipe", "quantize_model"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'jaxinfer.quantize' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
