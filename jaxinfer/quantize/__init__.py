"""Makes quantized checkpoints of float ones, and judges them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxinfer.quantize.convert import ConvertedModel, convert_model
    from jaxinfer.quantize.evaluate import evaluate_model
    from jaxinfer.quantize.make import QuantizedModel, quantize_model
    from jaxinfer.quantize.quality import Comparison, Evaluation, Quality
    from jaxinfer.quantize.ranking import Ranking, Sensitivity
    from jaxinfer.quantize.recipe import Recipe
    from jaxinfer.quantize.sensitivity import rank_sensitivity

_HOMES = {
    "Comparison": "jaxinfer.quantize.quality",
    "ConvertedModel": "jaxinfer.quantize.convert",
    "Evaluation": "jaxinfer.quantize.quality",
    "Quality": "jaxinfer.quantize.quality",
    "QuantizedModel": "jaxinfer.quantize.make",
    "Ranking": "jaxinfer.quantize.ranking",
    "Recipe": "jaxinfer.quantize.recipe",
    "Sensitivity": "jaxinfer.quantize.ranking",
    "convert_model": "jaxinfer.quantize.convert",
    "evaluate_model": "jaxinfer.quantize.evaluate",
    "quantize_model": "jaxinfer.quantize.make",
    "rank_sensitivity": "jaxinfer.quantize.sensitivity",
}

__all__ = [
    "Comparison",
    "ConvertedModel",
    "Evaluation",
    "Quality",
    "QuantizedModel",
    "Ranking",
    "Recipe",
    "Sensitivity",
    "convert_model",
    "evaluate_model",
    "quantize_model",
    "rank_sensitivity",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'jaxinfer.quantize' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
