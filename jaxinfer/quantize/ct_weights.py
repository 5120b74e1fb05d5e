"""JOINT. The weights of a result, in compressed-tensors form: a shard a layer, one for the rest.

So each file is written once, when what it holds is finished, and read back for what comes after it:
a run that goes on where another ended computes with the same numbers. Knows leaves and files, no
methods.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np

from jaxinfer.checkpoint.checkpoint import Checkpoint, find_sources
from jaxinfer.checkpoint.config_reader import ConfigReader
from jaxinfer.checkpoint.leaf_match import match_leaves
from jaxinfer.checkpoint.leaf_source import ROW_STEP, FloatMatrix
from jaxinfer.checkpoint.load import read_leaf
from jaxinfer.checkpoint.quant_formats.compressed_tensors import CompressedTensorsFormat
from jaxinfer.checkpoint.safetensors_file import INDEX_FILE, SafetensorsFiles
from jaxinfer.checkpoint.safetensors_writer import (
    TensorToWrite,
    whole_tensor,
    write_file,
    write_safetensors,
)
from jaxinfer.errors import CheckpointError
from jaxinfer.models.spec import Leaf
from jaxinfer.quantize.ct_matrix import matrix_tensors
from jaxinfer.quantize.grid import CodedMatrix
from jaxinfer.quantize.layer import Layer, read_layer
from jaxinfer.quantize.matrix_plan import layer_trees, module_of, outer_leaves

_BLOCK_ELEMENTS = 2**22
_KEPT = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F64": np.dtype(np.float32),
}


def float_dtype(checkpoint: Checkpoint, asked: str) -> np.dtype:
    """What matrices that stay float, and scales, are stored in: "auto" is as the source has them,
    bfloat16 where it has blocks."""
    if asked != "auto":
        return np.dtype(ml_dtypes.bfloat16 if asked == "bfloat16" else asked)
    names = [info.dtype_name for info in checkpoint.tensors.infos.values() if len(info.shape) == 2]
    if checkpoint.kind == "gguf":
        return _KEPT["BF16"]
    return _KEPT.get(max(set(names), key=names.count), _KEPT["BF16"])


class CtWeights:
    """The shards of one result.

    Args:
        folder: where they grow.
        checkpoint: the source.
        dtype: as `float_dtype` says.
        quantization: of config.json.
        rounds_inputs: as the recipe says.
    """

    def __init__(
        self,
        folder: Path,
        checkpoint: Checkpoint,
        dtype: np.dtype,
        quantization: Mapping[str, Any],
        *,
        rounds_inputs: bool,
    ) -> None:
        self._folder, self._checkpoint, self._dtype = folder, checkpoint, dtype
        self._quantization, self._rounds_inputs = quantization, rounds_inputs
        self._sources = find_sources(checkpoint)
        self._trees = layer_trees(checkpoint.config, checkpoint.architecture)

    def has_layer(self, number: int) -> bool:
        """Whether the layer is finished."""
        return self._shard(number).is_file()

    def source_layer(self, number: int) -> Layer:
        """A layer of the source, decoded."""
        return read_layer(self._trees[number], self._sources, self._checkpoint.kind)

    def finished_layer(self, number: int) -> Layer:
        """A layer of the result, decoded."""
        tensors = SafetensorsFiles((self._shard(number),))
        entry = ConfigReader(self._quantization, str(self._folder))
        reader = CompressedTensorsFormat(entry, tensors)
        leaves = _leaves_of(self._trees[number])
        config = self._checkpoint.config
        sources = match_leaves(leaves, config, tensors, "hf", quant_format=reader)
        return read_layer(self._trees[number], sources, "hf")

    def token_rows(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The embedding's rows of these tokens and, in their place, indices into them."""
        (leaf,) = [leaf for leaf in self._outer_leaves() if leaf.role == "embedding"]
        used, places = np.unique(tokens, return_inverse=True)
        rows = np.empty((len(used), leaf.shape[1]), np.float32)
        for start, block in self._blocks(leaf):
            inside = (used >= start) & (used < start + len(block))
            rows[inside] = block[used[inside] - start]
        return rows, places.reshape(tokens.shape).astype(np.int32)

    def write_outer(self) -> None:
        """The shard of what belongs to no layer, once."""
        path = self._shard(None)
        if not path.is_file():
            write_safetensors(path, [self._outer_tensor(leaf) for leaf in self._outer_leaves()])

    def write_layer(self, number: int, layer: Layer, coded: Mapping[Leaf, CodedMatrix]) -> None:
        """The shard of a layer: codes of the matrices that have some, floats of all else."""
        tensors: dict[str, np.ndarray] = {}
        for name, leaves in _by_tensor(_leaves_of(self._trees[number])).items():
            if leaves[0] in coded:
                parts = [coded[leaf] for leaf in leaves]
                module = module_of(leaves[0])
                tensors |= matrix_tensors(module, parts, rounds_inputs=self._rounds_inputs)
            else:
                tensors[name] = self._floats(leaves, layer)
        write_safetensors(self._shard(number), [whole_tensor(*item) for item in tensors.items()])

    @property
    def files(self) -> tuple[Path, ...]:
        """All shards, and their index behind them."""
        shards = (self._shard(number) for number in (None, *range(len(self._trees))))
        return (*shards, self._folder / INDEX_FILE)

    def write_index(self) -> int:
        """The index of all shards; returns the bytes of their tensors."""
        infos = SafetensorsFiles(self.files[:-1]).infos
        total = sum(info.nbytes for info in infos.values())
        places = {name: info.file.name for name, info in sorted(infos.items())}
        index = {"metadata": {"total_size": total}, "weight_map": places}
        write_file(self._folder / INDEX_FILE, json.dumps(index, indent=2).encode())
        return total

    def _shard(self, number: int | None) -> Path:
        place, count = 1 if number is None else number + 2, len(self._trees) + 1
        return self._folder / f"model-{place:05d}-of-{count:05d}.safetensors"

    def _outer_leaves(self) -> list[Leaf]:
        return outer_leaves(self._checkpoint.config, self._checkpoint.architecture)

    def _outer_tensor(self, leaf: Leaf) -> TensorToWrite:
        dtype = self._dtype_of(leaf, changed=False)
        return TensorToWrite(
            name=leaf.hf,
            dtype=dtype,
            shape=leaf.shape,
            blocks=lambda: (block.astype(dtype) for _, block in self._blocks(leaf)),
        )

    def _blocks(self, leaf: Leaf) -> Iterator[tuple[int, np.ndarray]]:
        """(first row, rows) of a leaf of no layer, as a Hugging Face file has them.

        Raises:
            CheckpointError: a value that is not finite.
        """
        if len(leaf.shape) == 1:
            yield 0, self._unchanged(leaf)
            return
        source: FloatMatrix = self._sources[leaf]  # type: ignore[assignment]  # no stack
        step = max(1, _BLOCK_ELEMENTS // leaf.shape[1] // ROW_STEP) * ROW_STEP
        for start in range(0, leaf.shape[0], step):
            block = source.read_floats(start, min(start + step, leaf.shape[0]))
            if not np.isfinite(block).all():
                raise CheckpointError(
                    f"tensor {source.name!r} in {source.file} holds NaN or infinity; the file is "
                    "damaged: fetch it again"
                )
            yield start, block

    def _unchanged(self, leaf: Leaf) -> np.ndarray:
        """A whole leaf as a Hugging Face file has it."""
        kind, source = self._checkpoint.kind, self._sources[leaf]
        if kind == "hf":
            return source.read_floats(0, leaf.shape[0])  # type: ignore[union-attr]  # no stack
        return read_leaf(kind, leaf, source) - np.float32(leaf.hf_add)

    def _floats(self, leaves: Sequence[Leaf], layer: Layer) -> np.ndarray:
        """What stays float: the parts of one tensor of a file."""
        changed = any(leaf in layer.changed for leaf in leaves)
        parts = [
            layer.values[leaf] - np.float32(leaf.hf_add)
            if leaf in layer.changed
            else self._unchanged(leaf)
            for leaf in leaves
        ]
        return np.concatenate(parts).astype(self._dtype_of(leaves[0], changed=changed))

    def _dtype_of(self, leaf: Leaf, *, changed: bool) -> np.dtype:
        """Vectors keep their precision; what was folded into them has float32's."""
        if leaf.role in ("matrix", "embedding"):
            return self._dtype
        if changed or self._checkpoint.kind != "hf":
            return _KEPT["F32"]
        return _KEPT.get(self._checkpoint.tensors.infos[leaf.hf].dtype_name, _KEPT["F32"])


def _leaves_of(tree: Mapping[str, Any]) -> list[Leaf]:
    return jax.tree.leaves(dict(tree))


def _by_tensor(leaves: Iterable[Leaf]) -> dict[str, list[Leaf]]:
    """The parts of each tensor of a file, from its first row on."""
    found: dict[str, list[Leaf]] = {}
    for leaf in sorted(leaves, key=lambda leaf: leaf.first_row):
        found.setdefault(leaf.hf, []).append(leaf)
    return dict(sorted(found.items()))
