"""GPTQ on one real layer, here and in qwix: whose outputs are nearer to the float matrix's?

1. `pip install qwix` into the environment of jaxinfer
2. `python bench/gptq_peer.py`

Both get the same matrix, the same products of inputs (from a calibration text) and the same share
of damping. The error is that of outputs, relative to outputs, for inputs that were seen and for
those of another text. Scales differ: here a clip search chooses them before the first column, there
they span what is left of a group when its first column comes.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import jax.numpy as jnp
import ml_dtypes
import numpy as np

from jaxinfer.checkpoint.checkpoint import Checkpoint, open_checkpoint
from jaxinfer.engine.checkpoint_text import tokenizer_of
from jaxinfer.quantize.calibration import token_blocks
from jaxinfer.quantize.ct_weights import CtWeights, float_dtype
from jaxinfer.quantize.gptq import round_with_feedback
from jaxinfer.quantize.grid import Scheme, make_grid, round_to_grid, search_grid
from jaxinfer.quantize.layer_programs import LayerPrograms
from jaxinfer.quantize.texts import calibration_text, held_out_text

_TOKENS_AT_ONCE = 256


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--layer", type=int, default=1)
    parser.add_argument("--matrices", default="q,up,down", help="of the layer; commas between")
    parser.add_argument("--bits", type=int, default=4)
    parser.add_argument("--group-size", type=int, default=64)
    parser.add_argument("--damping", type=float, default=0.01)
    parser.add_argument("--tokens", type=int, default=4096)
    return parser.parse_args(arguments)


def inputs_of(
    checkpoint: Checkpoint, weights: CtWeights, text: str, options: argparse.Namespace
) -> dict[str, np.ndarray]:
    """Inputs times inputs of each matrix of the layer, on a text."""
    tokenizer = tokenizer_of(checkpoint)
    assert tokenizer is not None, "the model has no tokenizer"
    tokens = token_blocks(
        text, tokenizer, num_tokens=options.tokens, sequence_length=_TOKENS_AT_ONCE
    )
    programs = LayerPrograms(checkpoint.config, (tokens.shape[0], tokens.shape[1]))
    hidden = programs.embed(*weights.token_rows(tokens))
    for number in range(options.layer):
        hidden = programs.run(number, weights.source_layer(number), hidden)
    layer = weights.source_layer(options.layer)
    found = programs.observe(options.layer, layer, hidden, options.matrices.split(","))
    return {name: statistics.gram for name, statistics in found.items()}


def theirs(matrix: np.ndarray, gram: np.ndarray, scheme: Scheme, damping: float) -> np.ndarray:
    """What qwix makes of the matrix."""
    from qwix._src.core import qarray
    from qwix.contrib import gptq_core

    how = qarray.HowToQuantize(
        qtype=f"int{scheme.bits}",
        channelwise_axes=(0,),
        tiled_axes={1: scheme.group},
        calibration_method="absmax",
    )
    hessian = jnp.asarray(gram, jnp.float32)
    value, _ = gptq_core.quantize_weight(jnp.asarray(matrix), hessian, how, percdamp=damping)
    return np.asarray(qarray.dequantize(value), np.float32)


def output_error(made: np.ndarray, matrix: np.ndarray, gram: np.ndarray) -> float:
    """Of the outputs, relative to them: a ratio of squared lengths."""
    off = (made - matrix).astype(np.float64)
    whole = matrix.astype(np.float64)
    return float(np.sum((off @ gram) * off) / np.sum((whole @ gram) * whole))


def compare(
    matrix: np.ndarray, grams: Sequence[np.ndarray], options: argparse.Namespace
) -> dict[str, list[float]]:
    """The error on the text that was seen and on the other one, by who made it."""
    seen, damping = grams[0], options.damping
    scheme = Scheme(
        bits=options.bits,
        group=options.group_size,
        symmetric=True,
        scale_dtype=np.dtype(ml_dtypes.bfloat16),
    )
    feedback = {
        name: round_with_feedback(matrix, seen, scheme, damping=damping, act_order=order)
        for name, order in (("gptq", False), ("gptq with act-order", True))
    }
    made = {
        "to nearest": round_to_grid(matrix, make_grid(matrix, scheme)).floats(),
        "to nearest, ranges searched": round_to_grid(
            matrix, search_grid(matrix, scheme, seen)
        ).floats(),
        **{name: coded.floats() for name, coded in feedback.items()},
        "qwix": theirs(matrix, seen, scheme, damping),
    }
    return {
        name: [round(output_error(value, matrix, gram), 6) for gram in grams]
        for name, value in made.items()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    checkpoint = open_checkpoint(options.model)
    dtype = float_dtype(checkpoint, "auto")
    with tempfile.TemporaryDirectory() as scratch:
        weights = CtWeights(Path(scratch), checkpoint, dtype, {}, rounds_inputs=False)
        grams = [
            inputs_of(checkpoint, weights, text, options)
            for text in (calibration_text(), held_out_text())
        ]
        layer, worse = weights.source_layer(options.layer), 0
    for name in options.matrices.split(","):
        found = compare(layer.value(name), [gram[name] for gram in grams], options)
        print(json.dumps({"model": options.model, "layer": options.layer, "matrix": name, **found}))
        worse += found["gptq with act-order"][0] > found["qwix"][0]
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
