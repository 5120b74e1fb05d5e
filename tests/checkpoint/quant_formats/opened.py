"""Opens a folder and hands out its layers by name."""

from pathlib import Path
from typing import Any

import numpy as np

from jaxinfer.checkpoint.checkpoint import find_sources, open_checkpoint
from jaxinfer.checkpoint.leaf_source import LeafSource, PackedMatrix
from jaxinfer.checkpoint.load import load_params

DOWN, V, K, Q = (
    "model.layers.1." + name
    for name in ("mlp.down_proj", "self_attn.v_proj", "self_attn.k_proj", "self_attn.q_proj")
)
DOWN_SHAPE, V_SHAPE = (64, 96), (32, 64)


def layer_of(folder: Path, name: str) -> LeafSource:
    """What fills the matrix of layer `name`."""
    sources = find_sources(open_checkpoint(folder, show_progress=False))
    (source,) = (source for leaf, source in sources.items() if leaf.hf == f"{name}.weight")
    return source


def packed_layer(folder: Path, name: str) -> PackedMatrix:
    source = layer_of(folder, name)
    assert isinstance(source, PackedMatrix)
    return source


def read(source: LeafSource, step: int = 32) -> np.ndarray:
    """All rows as floats; a block at a time gives the same as all at once."""
    rows = source.shape[0]
    whole = source.read_floats(0, rows)
    blocks = [source.read_floats(at, min(at + step, rows)) for at in range(0, rows, step)]
    np.testing.assert_array_equal(np.concatenate(blocks), whole)
    assert whole.dtype == np.float32
    return whole


def load(folder: Path, **options: Any) -> Any:
    """The parameters in float32."""
    checkpoint = open_checkpoint(folder, show_progress=False)
    return load_params(checkpoint, weight_dtype="float32", show_progress=False, **options)
