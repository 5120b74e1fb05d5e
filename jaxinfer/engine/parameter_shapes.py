"""JOINT. The shapes of everything an engine keeps as parameters, and the bytes of it.

What drafts lies under "draft"; what it shares with the model counts once. Touches no device.
"""

from typing import Any

import jax

from jaxinfer.checkpoint.load import abstract_params
from jaxinfer.checkpoint.storage import Storage
from jaxinfer.config.geometry import Geometry
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.engine.draft_model import DraftModel, by_leaf
from jaxinfer.models.spec import Architecture


def parameter_shapes(
    config: ModelConfig,
    architecture: Architecture,
    storage: Storage,
    geometry: Geometry,
    draft: DraftModel | None = None,
) -> Any:
    """Arrays without memory behind them, packed records where the storage packs."""
    weight_dtype = geometry.weight_dtype
    shapes = abstract_params(
        config, architecture, weight_dtype, storage.packed, round_inputs=storage.round_inputs
    )
    if draft is None:
        return shapes
    leaves = by_leaf(architecture, config, shapes)
    return shapes | {"draft": draft.abstract(leaves, weight_dtype)}


def num_bytes(shapes: Any) -> int:
    """Bytes of arrays or shapes; one that stands in two places counts once."""
    different = {id(leaf): leaf for leaf in jax.tree.leaves(shapes)}
    return sum(leaf.size * leaf.dtype.itemsize for leaf in different.values())


def read_bytes(
    shapes: Any, config: ModelConfig, draft: ModelConfig | None, geometry: Geometry
) -> tuple[int, int]:
    """Weights that a decode step reads, and those that drafting a token reads.

    Of an embedding that is no head only a few rows are read. A draft model with pages of its own
    runs in every step.
    """
    model = _read_bytes(shapes, config)
    if draft is None:
        return model, 0
    drafting = _read_bytes(shapes["draft"], draft)
    return model + (drafting if geometry.draft_layer_groups else 0), drafting


def _read_bytes(shapes: Any, config: ModelConfig) -> int:
    unread = ("draft",) if config.tie_embeddings else ("draft", "embedding")
    return num_bytes({name: part for name, part in shapes.items() if name not in unread})
