"""JOINT. Tensors of an opened checkpoint to the parameters of a model, a block of rows at a time.

A tensor is decoded straight into the one buffer that JAX then keeps (on the CPU without a copy), so
that there is never a second copy of the model. Knows leaves, not architectures.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from numpy.typing import DTypeLike
from tqdm import tqdm

from jaxinfer.checkpoint.checkpoint import Checkpoint
from jaxinfer.checkpoint.leaf_match import match_leaves
from jaxinfer.checkpoint.tensor_file import TensorInfo, TensorSource
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.errors import CheckpointError, ConfigError
from jaxinfer.models.spec import Architecture, Leaf

Place = Callable[[np.ndarray, Leaf], jax.Array]

_BLOCK_BYTES = 8 * 2**20  # of float32: decoding wants a few times this
_ALIGNMENT = 64  # what the CPU backend needs to use a buffer as it is
_WEIGHT_DTYPES = ("bfloat16", "float32")


def abstract_params(config: ModelConfig, architecture: Architecture, weight_dtype: Any) -> Any:
    """The parameters' shapes and dtypes: the tree of `load_params`, nothing read."""
    dtype = _weight_dtype(weight_dtype)
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, _leaf_dtype(leaf, dtype)),
        architecture.leaves(config),
    )


def load_params(
    checkpoint: Checkpoint,
    *,
    weight_dtype: Any,
    place: Place | None = None,
    show_progress: bool = True,
) -> Any:
    """The parameters: the tree of `architecture.leaves(config)` with an array for every leaf.

    Args:
        weight_dtype: "bfloat16" or "float32", of matrices and embeddings; norms and biases are
            float32.
        place: puts an array (64-byte aligned, not written again) on its device; by default the
            default device, without a copy on the CPU.
        show_progress: a bar in bytes of the file.

    Raises:
        CheckpointError: before anything is read: missing, misshapen or unused tensors; while
            reading: a value that is not finite.
        UnsupportedError: weights stored as integers.
    """
    dtype = _weight_dtype(weight_dtype)
    tree = checkpoint.architecture.leaves(checkpoint.config)
    leaves, structure = jax.tree.flatten(tree)
    infos = match_leaves(leaves, checkpoint.config, checkpoint.tensors, checkpoint.kind)
    place = place or _place_by_default
    total = sum(info.nbytes for info in infos.values())
    arrays: list[jax.Array] = []
    bar = tqdm(
        total=total, unit="B", unit_scale=True, desc="loading weights", disable=not show_progress
    )
    try:
        with bar:
            for leaf in leaves:
                reader = _LeafReader(checkpoint, leaf, infos[leaf], _leaf_dtype(leaf, dtype))
                arrays.append(jax.block_until_ready(place(reader.read(bar), leaf)))
    except BaseException:
        for array in arrays:  # whoever keeps the traceback must not keep half a model
            array.delete()
        raise
    return jax.tree.unflatten(structure, arrays)


def _place_by_default(value: np.ndarray, leaf: Leaf) -> jax.Array:
    return jax.device_put(value, may_alias=True)


def _weight_dtype(weight_dtype: Any) -> np.dtype:
    for name in _WEIGHT_DTYPES:
        if weight_dtype == name or weight_dtype == jax.numpy.dtype(name):
            return jax.numpy.dtype(name)
    raise ConfigError(f"weight_dtype={weight_dtype!r} must be one of {', '.join(_WEIGHT_DTYPES)}")


def _leaf_dtype(leaf: Leaf, weight_dtype: np.dtype) -> np.dtype:
    return weight_dtype if leaf.role in ("matrix", "embedding") else np.dtype(np.float32)


def _aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    num_bytes = math.prod(shape) * dtype.itemsize
    raw = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + num_bytes].view(dtype).reshape(shape)


class _LeafReader:
    """Reads one leaf's tensor into one buffer."""

    def __init__(
        self, checkpoint: Checkpoint, leaf: Leaf, info: TensorInfo, dtype: DTypeLike
    ) -> None:
        self.tensors: TensorSource = checkpoint.tensors
        self.info = info
        self.value = _aligned_empty(leaf.shape, np.dtype(dtype))
        self.add = leaf.hf_add if checkpoint.kind == "hf" else 0.0
        self.heads = leaf.gguf_interleaved_heads if checkpoint.kind == "gguf" else 0

    def read(self, bar: Any) -> np.ndarray:
        """The filled buffer; `bar` moves on by the bytes read."""
        num_rows = self.info.shape[0]
        step = self._rows_per_block()
        for start in range(0, num_rows, step):
            stop = min(start + step, num_rows)
            self._read_block(start, stop)
            bar.update(self.info.nbytes * stop // num_rows - self.info.nbytes * start // num_rows)
        return self.value

    def _rows_per_block(self) -> int:
        """Rows of a block: whole heads where rows of a head change places."""
        if len(self.info.shape) == 1:
            return max(1, self.info.shape[0])
        rows = max(1, _BLOCK_BYTES // (4 * max(1, math.prod(self.info.shape[1:]))))
        if self.heads:
            head_rows = self.info.shape[0] // self.heads
            rows = max(1, rows // head_rows) * head_rows
        return rows

    def _read_block(self, start: int, stop: int) -> None:
        block = self.tensors.read_rows(self.info.name, start, stop, np.float32)
        self._check_finite(block, start)
        if self.add:
            block = block + np.float32(self.add)
        target = self.value[start:stop]
        if self.heads:
            # Rows of a head of size 4, as stored: 0 2 1 3 → 0 1 2 3: pairs (0, 2), (1, 3) lie
            # side by side in the file and half a head apart here.
            half = self.info.shape[0] // self.heads // 2
            target = target.reshape(-1, 2, half, *block.shape[1:])
            block = block.reshape(-1, half, 2, *block.shape[1:]).swapaxes(1, 2)
        target[...] = block

    def _check_finite(self, block: np.ndarray, start: int) -> None:
        if block.size and not (math.isfinite(block.min()) and math.isfinite(block.max())):
            raise CheckpointError(
                f"tensor {self.info.name!r} in {self.info.file} holds NaN or infinity in the "
                f"{len(block)} rows from {start}; the file is damaged: fetch it again"
            )
