"""JOINT. `quantize_model`: a quantized checkpoint from a float one, layer by layer.

In memory are one layer in floats and the calibration text as that layer reads it. What is finished
is on disk: the same call again goes on after the last finished layer.
"""

import functools
import hashlib
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from jaxinfer.checkpoint.checkpoint import Checkpoint, open_checkpoint
from jaxinfer.checkpoint.native_form import is_native
from jaxinfer.engine.checkpoint_text import tokenizer_of
from jaxinfer.errors import ConfigError
from jaxinfer.quantize.calibration import token_blocks
from jaxinfer.quantize.convert import turn_native
from jaxinfer.quantize.ct_matrix import quantization_config
from jaxinfer.quantize.ct_weights import CtWeights, float_dtype
from jaxinfer.quantize.folder_files import model_config, write_files
from jaxinfer.quantize.layer_programs import LayerPrograms
from jaxinfer.quantize.matrix_plan import MatrixPlan, layer_trees, module_of, plan_matrices
from jaxinfer.quantize.methods import LayerTask, quantize_layer
from jaxinfer.quantize.recipe import Recipe, make_recipe
from jaxinfer.quantize.texts import calibration_text, read_text
from jaxinfer.quantize.work_folder import work_folder

_LOG = logging.getLogger("jaxinfer")
_VERSION = 1  # of what these files write; work of another version is not taken over


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedModel:
    """What was made. path: of the folder. num_matrices: that were rounded. floats: names of the
    layers' matrices that were not. source_bytes, bytes: of all weights. seconds: of this run."""

    path: Path
    recipe: Recipe
    num_matrices: int
    floats: tuple[str, ...]
    source_bytes: int
    bytes: int
    seconds: float


def quantize_model(
    model: str | Path,
    out: str | Path,
    *,
    method: str,
    calibration: str | Path | None = None,
    overwrite: bool = False,
    show_progress: bool = True,
    **options: Any,
) -> QuantizedModel:
    """Makes a quantized checkpoint: a compressed-tensors folder, or with format="native" a native
    one of the same numbers.

    Args:
        model: a float model: demo name, folder, GGUF file (its blocks are decoded) or hub id.
        out: the folder to be made; it appears when all is there.
        method: "rtn", "gptq", "awq" or "smoothquant".
        calibration: a text file, for all but "rtn"; of the kind that the model is used with.
        overwrite: a model that is at `out` may go, and unfinished work on another one.
        show_progress: bars.
        options: fields of `Recipe`.

    Raises:
        ConfigError: a wrong option, a text that is too short, a place that is taken.
        UnsupportedError: a family that is not quantized. CheckpointError: damaged weights.
        CapacityError: the disk is full; with space freed, the same call goes on.
    """
    began = time.monotonic()
    recipe, out = make_recipe(method, **options), Path(out).expanduser().absolute()
    checkpoint = open_checkpoint(model, show_progress=show_progress)
    _check_source(checkpoint, out)
    dtype = float_dtype(checkpoint, recipe.dtype)
    plan = plan_matrices(checkpoint.config, checkpoint.architecture, recipe, dtype)
    tokens = _calibration_tokens(recipe, calibration, checkpoint)
    config, said = model_config(checkpoint, dtype), _quantization(checkpoint, plan, recipe)
    marks = _fingerprint(checkpoint, recipe, tokens, said)
    with work_folder(out, marks, overwrite=overwrite) as folder:
        weights = CtWeights(folder, checkpoint, dtype, said, rounds_inputs=recipe.rounds_inputs)
        num_bytes = 0
        if not is_native(folder):  # a run that ended while it tidied up has nothing to make
            weights.write_outer()
            _make_layers(weights, checkpoint, plan, recipe, tokens, show_progress=show_progress)
            write_files(folder, checkpoint, config, said)
            num_bytes = weights.write_index()
        if recipe.format == "native":
            num_bytes = turn_native(folder, weights.files, show_progress=show_progress)
    return QuantizedModel(
        path=out,
        recipe=recipe,
        num_matrices=plan.num_matrices,
        floats=plan.floats,
        source_bytes=checkpoint.file_bytes,
        bytes=num_bytes,
        seconds=time.monotonic() - began,
    )


def _check_source(checkpoint: Checkpoint, out: Path) -> None:
    if checkpoint.kind != "gguf" and checkpoint.quant_format is not None:
        raise ConfigError(
            f"{checkpoint.path} is quantized already ({checkpoint.quantization}); start from the "
            "float model"
        )
    if out == checkpoint.path.absolute() or out in checkpoint.path.absolute().parents:
        raise ConfigError(f"out={str(out)!r} holds the model itself; choose another folder")


def _calibration_tokens(
    recipe: Recipe, calibration: str | Path | None, checkpoint: Checkpoint
) -> np.ndarray | None:
    """[sequences, tokens], None for a method that needs no text."""
    if not recipe.is_calibrated:
        if calibration is not None:
            raise ConfigError(
                f"calibration={str(calibration)!r} means nothing to method={recipe.method!r}, "
                "which looks at weights only; leave it out"
            )
        return None
    if calibration is None:
        raise ConfigError(
            f"method={recipe.method!r} needs calibration, a text file of the kind that the model "
            "is used with; give one, or take method='rtn'"
        )
    if recipe.sequence_length > checkpoint.config.longest_context:
        raise ConfigError(
            f"sequence_length={recipe.sequence_length} is over the "
            f"{checkpoint.config.longest_context} positions of the model; lower it"
        )
    tokenizer = tokenizer_of(checkpoint)
    if tokenizer is None:
        raise ConfigError(f"{checkpoint.path} has no tokenizer to read a calibration text with")
    tokens = token_blocks(
        read_text(Path(calibration), calibration_text, option="calibration"),
        tokenizer,
        num_tokens=recipe.calibration_tokens,
        sequence_length=recipe.sequence_length,
    )
    if tokens.max() >= checkpoint.config.vocab_size:
        raise ConfigError(
            f"the calibration text holds token id {tokens.max()}, the model's vocabulary has "
            f"{checkpoint.config.vocab_size}; its tokenizer is another model's"
        )
    return tokens


def _quantization(checkpoint: Checkpoint, plan: MatrixPlan, recipe: Recipe) -> dict[str, Any]:
    trees = layer_trees(checkpoint.config, checkpoint.architecture)
    schemes = {
        module_of(tree[name].value): (scheme, tree[name].value.shape[1])
        for tree, layer in zip(trees, plan.schemes, strict=True)
        for name, scheme in layer.items()
    }
    return quantization_config(
        schemes,
        ["lm_head", *plan.floats],
        rounds_inputs=recipe.rounds_inputs,
        act_order=recipe.method == "gptq" and recipe.act_order,
    )


def _fingerprint(
    checkpoint: Checkpoint,
    recipe: Recipe,
    tokens: np.ndarray | None,
    quantization: Mapping[str, Any],
) -> dict[str, Any]:
    """What decides the bytes of the result."""
    files = [(path, path.stat()) for path in checkpoint.tensors.files]
    return {
        "version": _VERSION,
        "model": str(checkpoint.path.absolute()),
        **asdict(recipe),
        "text": "" if tokens is None else hashlib.sha256(tokens.tobytes()).hexdigest(),
        "files": [[path.name, stat.st_size, stat.st_mtime_ns] for path, stat in files],
        "config": repr(checkpoint.config),
        "quantization": dict(quantization),
    }


def _make_layers(
    weights: CtWeights,
    checkpoint: Checkpoint,
    plan: MatrixPlan,
    recipe: Recipe,
    tokens: np.ndarray | None,
    *,
    show_progress: bool,
) -> None:
    """Writes the shards of all layers that are not there."""
    missing = [n for n in range(len(plan.schemes)) if not weights.has_layer(n)]
    if not missing:
        return
    if len(missing) < len(plan.schemes):
        _LOG.info(
            "%d layers are finished, %d to go", len(plan.schemes) - len(missing), len(missing)
        )
    programs, hidden = None, np.empty(0)
    if tokens is not None:
        shape = (tokens.shape[0], tokens.shape[1])
        programs = LayerPrograms(checkpoint.config, shape)
        hidden = programs.embed(*weights.token_rows(tokens))
    title = f"quantizing ({recipe.method})"
    for number in tqdm(range(max(missing) + 1), title, unit="layer", disable=not show_progress):
        if number in missing:
            layer = weights.source_layer(number)
            task = LayerTask(
                layer=layer,
                number=number,
                config=checkpoint.config,
                schemes=plan.schemes[number],
                observe=functools.partial(_observe, programs, number, layer, hidden),
            )
            coded = quantize_layer(task, recipe)
            weights.write_layer(number, layer, {layer.leaf(x): m for x, m in coded.items()})
        if programs is not None and number < max(missing):
            hidden = programs.run(number, weights.finished_layer(number), hidden)


def _observe(programs: LayerPrograms | None, *arguments: Any) -> dict[str, Any]:
    assert programs is not None, "a method without a text looks at no inputs"
    return programs.observe(*arguments)
