"""HOST. What fills an array of experts: a matrix each, from a tensor each or from one of them all.

Knows how a stack's tensors may be named and cut (`models.spec.ExpertStack`); what one matrix is
made of is its own source's business.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from jaxinfer.checkpoint.leaf_source import (
    FloatMatrix,
    LeafSource,
    PackedForm,
    PackedMatrix,
    PackedRows,
    PlainTensor,
    check_plain,
)
from jaxinfer.checkpoint.quant_formats.quant_format import QuantFormat
from jaxinfer.checkpoint.tensor_file import CheckpointKind, TensorInfo, TensorSource
from jaxinfer.errors import CheckpointError
from jaxinfer.models.spec import ExpertStack, Leaf


class StackedMatrices:
    """An array [experts, out, in].

    experts: what fills each matrix. name: the first one's, for messages. form: how all of them can
    be kept packed; None where they are decoded at load.
    """

    def __init__(self, experts: Sequence[LeafSource]) -> None:
        self.experts = tuple(experts)
        self.name, self.file = experts[0].name, experts[0].file
        self.shape = (len(experts), *experts[0].shape)
        self.num_bytes = sum(one.num_bytes for one in experts)
        self.tensors = frozenset().union(*(one.tensors for one in experts))
        self.form = _common_form(experts)


class TensorPart(FloatMatrix):
    """One expert's rows in a tensor [experts, rows] or [experts, rows, in] that is read as floats.

    first_row: of them, in the first two axes taken as one. step: from each to the next.
    """

    def __init__(
        self,
        tensors: TensorSource,
        info: TensorInfo,
        first_row: int,
        shape: tuple[int, ...],
        step: int = 1,
    ) -> None:
        self.name, self.file, self.tensors = info.name, info.file, frozenset({info.name})
        self.shape, self._source = shape, tensors
        self.num_bytes = info.nbytes * math.prod(shape) // math.prod(info.shape)
        self._first_row, self._step = first_row, step

    def read_floats(self, start: int, stop: int) -> np.ndarray:
        first, last = (self._first_row + self._step * place for place in (start, stop - 1))
        rows = self._source.read_rows(self.name, first, last + 1, np.float32, row_axes=2)
        return rows[:: self._step]


class ColumnPart(FloatMatrix):
    """The same of a tensor [experts, in, rows], as [rows, in]."""

    def __init__(
        self,
        tensors: TensorSource,
        info: TensorInfo,
        first_row: int,
        shape: tuple[int, ...],
        step: int = 1,
    ) -> None:
        self.name, self.file, self.tensors = info.name, info.file, frozenset({info.name})
        self.shape, self._source, self._step = shape, tensors, step
        self.num_bytes = info.nbytes * math.prod(shape) // math.prod(info.shape)
        self._expert, self._first = divmod(first_row, info.shape[2])

    def read_floats(self, start: int, stop: int) -> np.ndarray:
        first, last = (self._first + self._step * place for place in (start, stop - 1))
        stored = self._source.stored(self.name)[self._expert]
        return stored[:, first : last + 1 : self._step].T.astype(np.float32)


class _WithZeros(PackedMatrix):
    """A packed matrix without zero points, with zero points of 0."""

    def __init__(self, matrix: PackedMatrix) -> None:
        self.name, self.file, self.shape = matrix.name, matrix.file, matrix.shape
        self.num_bytes, self.tensors, self._matrix = matrix.num_bytes, matrix.tensors, matrix
        self.form = replace(matrix.form, addend="zeros")

    def read_packed(self, start: int, stop: int) -> PackedRows:
        rows = self._matrix.read_packed(start, stop)
        return replace(rows, addends=np.zeros((rows.scales.shape[0], stop - start), np.int8))

    def read_order(self) -> np.ndarray:
        return self._matrix.read_order()


def packed_form(source: LeafSource | StackedMatrices) -> PackedForm | None:
    """How a source can be kept packed, None where it cannot."""
    return source.form if isinstance(source, PackedMatrix | StackedMatrices) else None


def find_stack(
    leaf: Leaf, tensors: TensorSource, kind: CheckpointKind, quant_format: QuantFormat | None
) -> StackedMatrices:
    """What fills the leaf of a stack.

    Raises:
        CheckpointError: experts are missing (named), or their tensor has another shape.
        UnsupportedError: as the quantized format says.
    """
    assert leaf.stack is not None
    together = leaf.stack.hf_all if kind == "hf" else leaf.stack.gguf_all
    info = tensors.infos.get(together)
    if info is not None:
        check_plain(info, _stored_shape(leaf, leaf.stack, kind))
    if packed := _packed_parts(leaf, leaf.stack, together, kind, quant_format):
        return StackedMatrices(packed)
    if info is not None:
        return StackedMatrices(_plain_parts(leaf, leaf.stack, info, tensors, kind))
    pattern = leaf.stack.hf_each if kind == "hf" else leaf.stack.gguf_each
    names = [pattern.format(expert=expert) for expert in range(leaf.shape[0])]
    return StackedMatrices(_with_common_zeros(_one_by_one(leaf, names, tensors, quant_format)))


def _with_common_zeros(experts: list[LeafSource]) -> list[LeafSource]:
    """Zero points for all matrices where some have them and others need none."""
    matrices = [one for one in experts if isinstance(one, PackedMatrix)]
    is_mixed = {one.form.addend for one in matrices} == {"none", "zeros"}
    if not is_mixed or len(matrices) < len(experts):
        return experts
    return [one if one.form.addend == "zeros" else _WithZeros(one) for one in matrices]


def _common_form(experts: Sequence[LeafSource]) -> PackedForm | None:
    forms = {one.form if isinstance(one, PackedMatrix) else None for one in experts}
    form = forms.pop()
    return None if forms or form is None else replace(form, num_experts=len(experts))


def _packed_parts(
    leaf: Leaf,
    stack: ExpertStack,
    name: str,
    kind: CheckpointKind,
    quant_format: QuantFormat | None,
) -> list[LeafSource]:
    """The experts of one packed tensor; none where they are not kept so."""
    if quant_format is None or leaf.role != "matrix":
        return []
    firsts, step = _first_rows(leaf, stack, kind)
    layer, shape = name.removesuffix(".weight"), (leaf.shape[1], leaf.shape[2])
    found = (quant_format.row_range(layer, first, shape, step) for first in firsts)
    matrices = [one for one in found if one is not None]
    return list(matrices) if len(matrices) == len(firsts) else []


def _plain_parts(
    leaf: Leaf,
    stack: ExpertStack,
    info: TensorInfo,
    tensors: TensorSource,
    kind: CheckpointKind,
) -> list[LeafSource]:
    """The experts of one tensor that is read as floats."""
    firsts, step = _first_rows(leaf, stack, kind)
    part = ColumnPart if _has_inputs_first(leaf, stack, kind) else TensorPart
    return [part(tensors, info, first, leaf.shape[1:], step) for first in firsts]


def _has_inputs_first(leaf: Leaf, stack: ExpertStack, kind: CheckpointKind) -> bool:
    return kind == "hf" and stack.hf_inputs_first and len(leaf.shape) == 3


def _stored_shape(leaf: Leaf, stack: ExpertStack, kind: CheckpointKind) -> tuple[int, ...]:
    """Of the tensor that holds all experts."""
    count, rows, *columns = leaf.shape
    rows *= stack.hf_num_parts if kind == "hf" else 1
    if _has_inputs_first(leaf, stack, kind):
        return count, *columns, rows
    return count, rows, *columns


def _first_rows(leaf: Leaf, stack: ExpertStack, kind: CheckpointKind) -> tuple[list[int], int]:
    """First row of each expert, the first two axes of a tensor [experts, rows, …] taken as one, and
    the step from row to row."""
    count, rows = leaf.shape[:2]
    if kind == "gguf":
        return [expert * rows for expert in range(count)], 1
    return [stack.first_row(expert, rows) for expert in range(count)], stack.row_step


def _one_by_one(
    leaf: Leaf, names: Sequence[str], tensors: TensorSource, quant_format: QuantFormat | None
) -> list[LeafSource]:
    shape, infos = leaf.shape[1:], tensors.infos
    found: list[LeafSource] = []
    layers = [name.removesuffix(".weight") for name in names]
    packs = quant_format if leaf.role == "matrix" else None
    matrices = [packs.matrix(one, (shape[0], shape[1])) if packs else None for one in layers]
    missing = [
        name
        for name, matrix in zip(names, matrices, strict=True)
        if matrix is None and name not in infos
    ]
    if missing:
        raise CheckpointError(
            f"{tensors.files[0].parent} lacks {len(missing)} of the {len(names)} experts that its "
            f"config asks for: {', '.join(map(repr, missing[:5]))}"
            f"{f' and {len(missing) - 5} more' if len(missing) > 5 else ''}; fetch it again, or "
            "mend the number of experts in the config"
        )
    for name, matrix in zip(names, matrices, strict=True):
        if matrix is None:
            check_plain(infos[name], shape)
        found.append(matrix or PlainTensor(info=infos[name], source=tensors))
    return found
