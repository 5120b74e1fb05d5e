"""HOST. What fills an array of experts: a matrix each, from a tensor each or from one of them all.

Knows how a stack's tensors may be named and cut (`models.spec.ExpertStack`); what one matrix is
made of is its own source's business.
"""

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
    """The rows of one expert in a tensor [experts, rows, in] that is read as floats."""

    def __init__(
        self, tensors: TensorSource, info: TensorInfo, first_row: int, num_rows: int
    ) -> None:
        self.name, self.file, self.tensors = info.name, info.file, frozenset({info.name})
        self.shape = (num_rows, info.shape[2])
        self.num_bytes = info.nbytes * num_rows // (info.shape[0] * info.shape[1])
        self._source, self._first_row = tensors, first_row

    def read_floats(self, start: int, stop: int) -> np.ndarray:
        first = self._first_row
        return self._source.read_rows(
            self.name, first + start, first + stop, np.float32, row_axes=2
        )


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
    if together in tensors.infos:
        parts = _parts_of(leaf, leaf.stack, tensors.infos[together], tensors, kind, quant_format)
        return StackedMatrices(parts)
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


def _parts_of(
    leaf: Leaf,
    stack: ExpertStack,
    info: TensorInfo,
    tensors: TensorSource,
    kind: CheckpointKind,
    quant_format: QuantFormat | None,
) -> list[LeafSource]:
    """The experts of one tensor; checked as far as a plain tensor's shape is."""
    count, rows, columns = leaf.shape
    parts, part = (stack.hf_num_parts, stack.hf_part) if kind == "hf" else (1, 0)
    check_plain(info, (count, parts * rows, columns))
    firsts = [(expert * parts + part) * rows for expert in range(count)]
    layer, shape = info.name.removesuffix(".weight"), (rows, columns)
    if quant_format is not None:
        found = [quant_format.row_range(layer, first, shape) for first in firsts]
        matrices = [one for one in found if one is not None]
        if len(matrices) == count:
            return list(matrices)
    return [TensorPart(tensors, info, first, rows) for first in firsts]


def _one_by_one(
    leaf: Leaf, names: Sequence[str], tensors: TensorSource, quant_format: QuantFormat | None
) -> list[LeafSource]:
    shape, infos = (leaf.shape[1], leaf.shape[2]), tensors.infos
    found: list[LeafSource] = []
    layers = [name.removesuffix(".weight") for name in names]
    matrices = [quant_format.matrix(one, shape) if quant_format else None for one in layers]
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
