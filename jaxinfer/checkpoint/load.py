"""JOINT. Tensors of an opened checkpoint to the parameters of a model, a block of rows at a time.

A tensor is decoded straight into the one buffer that JAX then keeps (on the CPU without a copy), so
that there is never a second copy of the model; a quantized matrix that stays packed goes into one
buffer for each of its arrays. Knows leaves, not architectures.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from jaxinfer.checkpoint.checkpoint import Checkpoint, find_sources
from jaxinfer.checkpoint.expert_stack import StackedMatrices, packed_form
from jaxinfer.checkpoint.leaf_source import (
    ROW_STEP,
    FloatMatrix,
    LeafSource,
    PackedForm,
    PackedMatrix,
    PackedRows,
)
from jaxinfer.checkpoint.packed_record import abstract_record, packed_record
from jaxinfer.checkpoint.tensor_file import CheckpointKind
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.errors import CheckpointError, ConfigError
from jaxinfer.models.spec import Architecture, Leaf

Place = Callable[[np.ndarray, Leaf], jax.Array]

_BLOCK_BYTES = 8 * 2**20  # of float32: decoding wants a few times this
_ALIGNMENT = 64  # what the CPU backend needs to use a buffer as it is
_WEIGHT_DTYPES = ("bfloat16", "float32")
_FLOAT32 = np.dtype(np.float32)


def packed_forms(sources: Mapping[Leaf, LeafSource | StackedMatrices]) -> dict[Leaf, PackedForm]:
    """The leaves that can be kept packed, and how."""
    forms = {leaf: _packable(leaf, source) for leaf, source in sources.items()}
    return {leaf: form for leaf, form in forms.items() if form is not None}


def _packable(leaf: Leaf, source: LeafSource | StackedMatrices) -> PackedForm | None:
    return packed_form(source) if leaf.role == "matrix" else None


def abstract_params(
    config: ModelConfig,
    architecture: Architecture,
    weight_dtype: Any,
    packed: Mapping[Leaf, PackedForm] | None = None,
    *,
    round_inputs: bool = False,
) -> Any:
    """The parameters' shapes and dtypes: the tree of `load_params`, nothing read.

    Args:
        packed: leaves that are kept packed; none by default. round_inputs: as for `load_params`.
    """
    dtype, forms = _weight_dtype(weight_dtype), packed or {}
    return jax.tree.map(
        lambda leaf: (
            abstract_record(forms[leaf], round_inputs=round_inputs)
            if leaf in forms
            else jax.ShapeDtypeStruct(leaf.shape, _leaf_dtype(leaf, dtype))
        ),
        architecture.leaves(config),
    )


def load_params(
    checkpoint: Checkpoint,
    *,
    weight_dtype: Any,
    keep_packed: bool = False,
    round_inputs: bool = False,
    sources: Mapping[Leaf, LeafSource | StackedMatrices] | None = None,
    given: Mapping[Leaf, Any] | None = None,
    place: Place | None = None,
    show_progress: bool = True,
) -> Any:
    """The parameters: the tree of `architecture.leaves(config)` with an array for every leaf, or a
    packed record.

    Args:
        weight_dtype: "bfloat16" or "float32", of matrices and embeddings; norms and biases are
            float32.
        keep_packed: quantized matrices stay codes and scales; otherwise they are decoded here.
        round_inputs: the inputs of packed matrices are rounded where the checkpoint says how.
        sources: what fills each leaf; by default as `find_sources` says.
        given: leaves that are not read, and what stands for them.
        place: puts an array (64-byte aligned, not written again) on its device; by default the
            default device, without a copy on the CPU.
        show_progress: a bar in bytes of the file.

    Raises:
        CheckpointError: before anything is read: missing, misshapen or unused tensors; while
            reading: a value that is not finite.
        UnsupportedError: weights stored as integers.
    """
    dtype = _weight_dtype(weight_dtype)
    leaves, structure = jax.tree.flatten(checkpoint.architecture.leaves(checkpoint.config))
    sources = find_sources(checkpoint) if sources is None else sources
    place = place or _place_by_default
    values: dict[Leaf, Any] = {}
    unread = [leaf for leaf in leaves if leaf not in (given or {})]
    total = sum(sources[leaf].num_bytes for leaf in unread)
    bar = tqdm(
        total=total, unit="B", unit_scale=True, desc="loading weights", disable=not show_progress
    )
    try:
        with bar:
            for leaf in unread:
                source = sources[leaf]
                form = _packable(leaf, source) if keep_packed else None
                buffers = _read(checkpoint.kind, leaf, source, form, _leaf_dtype(leaf, dtype), bar)
                placed = {name: place(buffer, leaf) for name, buffer in buffers.items()}
                record = packed_record(form, placed, round_inputs=round_inputs) if form else None
                values[leaf] = jax.block_until_ready(record or placed["value"])
    except BaseException:
        # Whoever keeps the traceback must not keep half.
        for array in jax.tree.leaves(list(values.values())):
            array.delete()
        raise
    values |= given or {}
    return jax.tree.unflatten(structure, [values[leaf] for leaf in leaves])


def read_leaf(kind: CheckpointKind, leaf: Leaf, source: LeafSource | StackedMatrices) -> np.ndarray:
    """One leaf as float32 on the host, as `load_params` would have it.

    Raises:
        CheckpointError: a value that is not finite.
    """
    return read_arrays(kind, leaf, source)["value"]


def read_arrays(
    kind: CheckpointKind,
    leaf: Leaf,
    source: LeafSource | StackedMatrices,
    *,
    form: PackedForm | None = None,
    dtype: np.dtype = _FLOAT32,
) -> dict[str, np.ndarray]:
    """One leaf on the host: the arrays of its packed form, or its "value" in `dtype`.

    Raises:
        CheckpointError: a value that is not finite.
    """
    with tqdm(disable=True) as bar:
        return _read(kind, leaf, source, form, dtype, bar)


def _place_by_default(value: np.ndarray, leaf: Leaf) -> jax.Array:
    return jax.device_put(value, may_alias=True)


def _weight_dtype(weight_dtype: Any) -> np.dtype:
    for name in _WEIGHT_DTYPES:
        if weight_dtype == name or weight_dtype == jax.numpy.dtype(name):
            return jax.numpy.dtype(name)
    raise ConfigError(f"weight_dtype={weight_dtype!r} must be one of {', '.join(_WEIGHT_DTYPES)}")


def _leaf_dtype(leaf: Leaf, weight_dtype: np.dtype) -> np.dtype:
    """Stacks of experts keep the bits of bfloat16: see `layers/expert_tiles.py`."""
    if leaf.role not in ("matrix", "embedding"):
        return np.dtype(np.float32)
    is_stack = leaf.stack is not None and weight_dtype.itemsize == 2
    return np.dtype(np.uint16) if is_stack else weight_dtype


def _aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    num_bytes = math.prod(shape) * dtype.itemsize
    raw = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + num_bytes].view(dtype).reshape(shape)


def _read(
    kind: CheckpointKind,
    leaf: Leaf,
    source: LeafSource | StackedMatrices,
    form: PackedForm | None,
    dtype: np.dtype,
    bar: Any,
) -> dict[str, np.ndarray]:
    """The arrays of a leaf, filled: those of its packed form, or its "value"."""
    arrays = form.arrays() if form else {"value": (leaf.shape, dtype)}
    buffers = {name: _aligned_empty(shape, dtype) for name, (shape, dtype) in arrays.items()}
    stack = source.experts if isinstance(source, StackedMatrices) else None
    for number, one in enumerate(stack or (source,)):
        own = {name: buffer[number] if stack else buffer for name, buffer in buffers.items()}
        if form is not None:
            _PackedReader(kind, leaf, one, own).read(bar)  # type: ignore[arg-type]
        else:
            if dtype == np.uint16:
                own["value"] = own["value"].view(jax.numpy.bfloat16)
            _FloatReader(kind, leaf, one, own["value"]).read(bar)  # type: ignore[arg-type]
    return buffers


class _LeafReader:
    """Reads one leaf, or one matrix of a stack, a block of rows at a time."""

    def __init__(self, kind: CheckpointKind, leaf: Leaf, source: LeafSource) -> None:
        self.leaf, self.source = leaf, source
        self.heads = leaf.gguf_interleaved_heads if kind == "gguf" else 0

    def read(self, bar: Any) -> None:
        """Fills the buffers; `bar` moves on by the bytes read."""
        num_rows, num_bytes = self.source.shape[0], self.source.num_bytes
        step = self._rows_per_block()
        for start in range(0, num_rows, step):
            stop = min(start + step, num_rows)
            self.read_block(start, stop)
            bar.update(num_bytes * stop // num_rows - num_bytes * start // num_rows)

    def _rows_per_block(self) -> int:
        """Rows of a block: whole heads where rows of a head change places, whole words and scales
        where several rows share them."""
        shape = self.source.shape
        if len(shape) == 1:
            return max(1, shape[0])
        unit = shape[0] // self.heads if self.heads else 1
        if isinstance(self.source, FloatMatrix):
            unit = math.lcm(unit, ROW_STEP)
        if isinstance(self.source, PackedMatrix):
            unit = math.lcm(unit, self.source.form.out_group)
        rows = max(1, _BLOCK_BYTES // (4 * max(1, math.prod(shape[1:]))))
        return max(1, rows // unit) * unit

    def row_order(self, count: int) -> np.ndarray | slice:
        """Where the rows of a block come from.

        Rows of a head of size 4, as stored: 0 2 1 3 → 0 1 2 3: pairs (0, 2), (1, 3) lie side by
        side in the file and half a head apart here.
        """
        if not self.heads:
            return slice(None)
        half = self.leaf.shape[0] // self.heads // 2
        return np.arange(count).reshape(-1, half, 2).swapaxes(1, 2).reshape(-1)

    def read_block(self, start: int, stop: int) -> None:
        raise NotImplementedError

    def refuse_if_not_finite(self, block: np.ndarray, what: str, start: int, stop: int) -> None:
        if block.size and not (math.isfinite(block.min()) and math.isfinite(block.max())):
            raise CheckpointError(
                f"tensor {self.source.name!r} in {self.source.file} holds NaN or infinity in the "
                f"{what} {stop - start} rows from {start}; the file is damaged: fetch it again"
            )


class _FloatReader(_LeafReader):
    """Reads one matrix or vector into one buffer of floats."""

    def __init__(
        self, kind: CheckpointKind, leaf: Leaf, source: LeafSource, value: np.ndarray
    ) -> None:
        super().__init__(kind, leaf, source)
        self.value = value
        self.add = leaf.hf_add if kind == "hf" else 0.0

    def read_block(self, start: int, stop: int) -> None:
        block = self.source.read_floats(start, stop)
        self.refuse_if_not_finite(block, "", start, stop)
        if self.add:
            block = block + np.float32(self.add)
        self.value[start:stop] = block[self.row_order(stop - start)]


class _PackedReader(_LeafReader):
    """Reads one quantized matrix into one buffer for each of its arrays."""

    def __init__(
        self,
        kind: CheckpointKind,
        leaf: Leaf,
        source: PackedMatrix,
        buffers: Mapping[str, np.ndarray],
    ) -> None:
        super().__init__(kind, leaf, source)
        self.matrix, self.form, self.buffers = source, source.form, buffers
        if self.form.is_permuted:
            self.buffers["order"][...] = source.read_order()

    def read_block(self, start: int, stop: int) -> None:
        rows = self.matrix.read_packed(start, stop)
        self._check(rows, start, stop)
        order = self.row_order(stop - start)
        self.buffers["codes"][start:stop] = rows.codes[order]
        if rows.addends is not None:
            self.buffers[self.form.addend][:, start:stop] = rows.addends[:, order]
        if self.form.out_group == 1:
            self.buffers["scales"][:, start:stop] = rows.scales[:, order]
        else:
            blocks = slice(start // self.form.out_group, -(-stop // self.form.out_group))
            self.buffers["scales"][:, blocks] = rows.scales

    def _check(self, rows: PackedRows, start: int, stop: int) -> None:
        floats = [rows.scales.astype(np.float32)]
        if self.form.codes == "fp8":
            floats.append(rows.codes.astype(np.float32))
        if self.form.addend == "offsets" and rows.addends is not None:
            floats.append(rows.addends.astype(np.float32))
        for block in floats:
            self.refuse_if_not_finite(block, "codes or scales of the", start, stop)
