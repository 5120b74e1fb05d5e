"""JOINT. One decoder layer while it is quantized: its parameters as floats on the host, by name.

Holds which linear layers read the same input and what comes before it, in the forward function of
`models/transformer.py`; a family with another one is refused before anything is read.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxinfer.checkpoint.load import read_leaf
from jaxinfer.checkpoint.storage import Source
from jaxinfer.checkpoint.tensor_file import CheckpointKind
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.layers.weights import BiasedWeight, LinearWeight, ObservedMatrix, Weight
from jaxinfer.models.spec import Leaf

Heads = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Linear layers that read one input, in the order in which a layer runs them.

    producer: what the input is made by, linearly in its rows: a norm's scale or another matrix. In
    a family without that norm nothing can be folded there.
    """

    readers: tuple[str, ...]
    producer: str


STAGES = (
    Stage(readers=("q", "k", "v"), producer="attention_norm"),
    Stage(readers=("o",), producer="v"),
    Stage(readers=("gate", "up"), producer="mlp_norm"),
    Stage(readers=("down",), producer="up"),
)
MATRICES = tuple(name for stage in STAGES for name in stage.readers)


class Layer:
    """The parameters of one layer; makers change them.

    Args:
        tree: the layer's part of the architecture's leaves.
        values: float32 of every leaf.
    """

    def __init__(self, tree: Mapping[str, Any], values: dict[Leaf, np.ndarray]) -> None:
        self.tree, self.values = tree, values
        self.changed: set[Leaf] = set()

    def has(self, name: str) -> bool:
        """Whether the family's layers have a matrix or norm of that name."""
        return name in self.tree

    def leaf(self, name: str) -> Leaf:
        """Of a matrix or norm."""
        part = self.tree[name]
        leaf: Any = part.value if isinstance(part, Weight | BiasedWeight) else part
        return leaf

    def value(self, name: str) -> np.ndarray:
        """[out, in] of a matrix, [size] of a norm."""
        return self.values[self.leaf(name)]

    def change(self, name: str, value: np.ndarray) -> None:
        """Puts another value in the place of a matrix or norm."""
        self._change(self.leaf(name), value)

    def divide_rows(self, name: str, divisors: np.ndarray) -> None:
        """Divides what a matrix (bias too) or a norm gives, an output at a time."""
        leaf, part = self.leaf(name), self.tree[name]
        wide = divisors[:, None] if self.values[leaf].ndim == 2 else divisors
        self._change(leaf, self.values[leaf] / wide)
        if isinstance(part, BiasedWeight):
            bias: Any = part.bias
            self._change(bias, self.values[bias] / divisors)

    def _change(self, leaf: Leaf, value: np.ndarray) -> None:
        self.values[leaf] = value.astype(np.float32)
        self.changed.add(leaf)

    def params(self) -> dict:
        """The layer's part of the parameters."""
        return jax.tree.map(lambda leaf: self.values[leaf], dict(self.tree))


def observed(params: Mapping[str, Any], observers: Mapping[str, Callable[..., None]]) -> dict:
    """A layer's parameters with matrices that show their inputs."""
    return {name: _observed(part, observers.get(name)) for name, part in params.items()}


def _observed(part: Any, observe: Callable[..., None] | None) -> LinearWeight | Any:
    if observe is None:
        return part
    return part.replace(value=ObservedMatrix(value=part.value, observe=observe))


def read_layer(
    tree: Mapping[str, Any], sources: Mapping[Leaf, Source], kind: CheckpointKind
) -> Layer:
    """A layer of a checkpoint, decoded.

    Raises:
        CheckpointError: a value that is not finite.
    """
    leaves = jax.tree.leaves(dict(tree))
    return Layer(tree, {leaf: read_leaf(kind, leaf, sources[leaf]) for leaf in leaves})


def fold(layer: Layer, stage: Stage, scales: np.ndarray, heads: Heads | None) -> None:
    """Moves scales of a stage's inputs into what comes before it: outputs stay what they were.

    Args:
        scales: [in], the stage's matrices are multiplied by them, column by column.
        heads: as `shared_columns` says; scales must be `tied` by it.
    """
    for name in stage.readers:
        layer.change(name, layer.value(name) * scales)
    rows = scales if heads is None else scales.reshape(heads)[:, 0].reshape(-1)
    layer.divide_rows(stage.producer, rows)


def tied(scales: np.ndarray, heads: Heads | None) -> np.ndarray:
    """The scales with one value (the geometric mean) wherever inputs share an output.

    Example: 1 kv head, 2 query heads, size 2: [1 2 4 8] → [2 4 2 4].
    """
    if heads is None:
        return scales
    logs = np.log(scales.astype(np.float64)).reshape(heads)
    means = np.exp(logs.mean(axis=1, keepdims=True))
    return np.broadcast_to(means, heads).reshape(-1).astype(np.float32)


def shared_columns(stage: Stage, config: ModelConfig) -> Heads | None:
    """(kv heads, query heads of each, head size) where inputs of a stage share an output of what
    comes before: o reads every value of v once for each query head of its group."""
    if stage.producer != "v":
        return None
    heads = config.num_kv_heads
    return heads, config.num_heads // heads, config.head_dim
