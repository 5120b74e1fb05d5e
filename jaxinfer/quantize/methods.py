"""JOINT. The four methods on one layer: which scales are folded, and how each matrix is rounded.

The algorithms are in `grid`, `gptq` and `channel_scales`; here is what they are given. Knows no
files and does not run the model itself.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxinfer.config.model_config import ModelConfig
from jaxinfer.errors import CheckpointError
from jaxinfer.quantize.channel_scales import search_scales, smoothing_scales
from jaxinfer.quantize.gptq import round_with_feedback
from jaxinfer.quantize.grid import (
    CodedMatrix,
    Scheme,
    make_grid,
    round_to_grid,
    search_grid,
)
from jaxinfer.quantize.input_statistics import InputStatistics
from jaxinfer.quantize.layer import STAGES, Layer, Stage, fold, shared_columns, tied
from jaxinfer.quantize.recipe import Recipe

_NOT_CLIPPED = ("q", "k")  # products of both decide what attends to what: AWQ leaves their ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTask:
    """A layer to be quantized.

    number: its place in the model. schemes: how each matrix is rounded; one that stays float is not
    among them. observe: what the inputs of the matrices of those names are like, with the layer as
    it is now.
    """

    layer: Layer
    number: int
    config: ModelConfig
    schemes: Mapping[str, Scheme]
    observe: Callable[[Sequence[str]], dict[str, InputStatistics]]

    def rounded_of(self, stage: Stage) -> list[str]:
        """The stage's matrices that do not stay float."""
        return [name for name in stage.readers if name in self.schemes]

    def inputs_of(self, stages: Sequence[Stage]) -> dict[str, InputStatistics]:
        """What the stages' inputs are like, by the name of each one's first matrix.

        Raises:
            CheckpointError: they are not finite.
        """
        seen = self.observe([stage.readers[0] for stage in stages])
        for name, inputs in seen.items():
            if not (np.isfinite(inputs.gram).all() and np.isfinite(inputs.largest).all()):
                raise CheckpointError(
                    f"inputs of {self.layer.leaf(name).hf!r} hold NaN or infinity on the "
                    "calibration text; the checkpoint is damaged, or its numbers leave float32: "
                    "see what `jaxinfer generate` makes of the text"
                )
        return seen


def quantize_layer(task: LayerTask, recipe: Recipe) -> dict[str, CodedMatrix]:
    """The codes of the layer's matrices, by name; what was folded is in the layer.

    Raises:
        CheckpointError: inputs that are not finite.
    """
    if recipe.method == "gptq":
        return _gptq(task, recipe)
    if recipe.method == "awq":
        return _awq(task)
    if recipe.method == "smoothquant":
        _smooth(task, recipe.smoothing)
    return {name: _nearest(task, name) for name in task.schemes}


def _nearest(task: LayerTask, name: str) -> CodedMatrix:
    weights = task.layer.value(name)
    return round_to_grid(weights, make_grid(weights, task.schemes[name]))


def _gptq(task: LayerTask, recipe: Recipe) -> dict[str, CodedMatrix]:
    """Stage after stage: each is calibrated on what the rounded ones before it make."""
    coded = {}
    for stage in STAGES:
        names = task.rounded_of(stage)
        inputs = task.inputs_of([stage])[stage.readers[0]] if names else None
        for name in names:
            assert inputs is not None
            coded[name] = round_with_feedback(
                task.layer.value(name),
                inputs.gram,
                task.schemes[name],
                damping=recipe.damping,
                act_order=recipe.act_order,
            )
            task.layer.change(name, coded[name].floats())
    return coded


def _awq(task: LayerTask) -> dict[str, CodedMatrix]:
    """All scales of the layer first, found and folded in floats, then clipping and rounding."""
    stages = [stage for stage in STAGES if task.rounded_of(stage)]
    seen = task.inputs_of(stages)
    coded = {}
    for stage in stages:
        if task.layer.has(stage.producer):
            first = stage.readers[0]
            seen[first] = _fold_searched(task, stage, seen[first])
    for stage in stages:
        for name in task.rounded_of(stage):
            if name in _NOT_CLIPPED:
                coded[name] = _nearest(task, name)
                continue
            weights, gram = task.layer.value(name), seen[stage.readers[0]].gram
            coded[name] = round_to_grid(weights, search_grid(weights, task.schemes[name], gram))
    return coded


def _fold_searched(task: LayerTask, stage: Stage, inputs: InputStatistics) -> InputStatistics:
    """Folds the best scales; what the stage's inputs are like after it."""
    heads = shared_columns(stage, task.config)
    matrices = [(task.layer.value(name), task.schemes[name]) for name in task.rounded_of(stage)]
    scales = search_scales(matrices, inputs, functools.partial(tied, heads=heads))
    fold(task.layer, stage, scales, heads)
    return inputs.divided(scales)


def _smooth(task: LayerTask, strength: float) -> None:
    """Stages behind a norm: there a few inputs are loud, and the norm takes the scales."""
    stages = [
        stage
        for stage in STAGES
        if task.rounded_of(stage)
        and stage.producer.endswith("norm")
        and task.layer.has(stage.producer)
    ]
    seen = task.inputs_of(stages) if stages else {}
    for stage in stages:
        weights = [task.layer.value(name) for name in stage.readers]
        scales = smoothing_scales(weights, seen[stage.readers[0]], strength)
        fold(task.layer, stage, scales, None)
