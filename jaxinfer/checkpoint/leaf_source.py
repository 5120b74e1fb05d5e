"""HOST. What fills one leaf, a block of rows at a time: a stored tensor, or a packed matrix.

Holds the shape of a packed matrix (`PackedForm`), its rows as every quantized format gives them
(`PackedRows`) and what they mean in floats. Knows no file format and no leaf.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import ml_dtypes
import numpy as np

from jaxinfer.checkpoint.bit_fields import unpack_nibbles
from jaxinfer.checkpoint.tensor_file import TensorInfo, TensorSource
from jaxinfer.errors import CheckpointError, UnsupportedError

CodeKind = Literal["int4", "int8", "fp8"]
Addend = Literal["none", "zeros", "offsets"]

_FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
_INTEGERS = ("BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64", "F8_E8M0")
_LOWEST = {"int4": -8, "int8": -128}
ROW_STEP = 32  # rows that every packing divides into whole words


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRounding:
    """How a layer's inputs were meant to be rounded: "int8" or "fp8", and columns under a scale."""

    kind: Literal["int8", "fp8"]
    group: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedForm:
    """Every shape and dtype of a packed matrix; the records of `layers/weights.py` hold its arrays.

    shape: (out, in). codes: how wide a code is stored. group, out_group: columns and rows under one
    scale. addend: what is beside the scales. is_permuted: columns lie in an order of their own.
    inputs: how the checkpoint was meant to round the layer's inputs, None for not at all.
    num_experts: above 0, each array has a leading axis of that many such matrices.
    """

    shape: tuple[int, int]
    codes: CodeKind
    group: int
    scale_dtype: np.dtype
    addend: Addend = "none"
    out_group: int = 1
    is_permuted: bool = False
    inputs: InputRounding | None = None
    num_experts: int = 0

    @property
    def bits(self) -> int:
        """Of a stored code."""
        return 4 if self.codes == "int4" else 8

    def arrays(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Shape and dtype of each array: codes, scales, and zeros, offsets and order if it has."""
        rows, columns = self.shape
        groups = -(-columns // self.group)
        kinds = {"int4": np.uint8, "int8": np.int8, "fp8": ml_dtypes.float8_e4m3fn}
        width = -(-columns // 2) if self.codes == "int4" else columns
        arrays: dict[str, tuple[tuple[int, ...], np.dtype]] = {
            "codes": ((rows, width), np.dtype(kinds[self.codes])),
            "scales": ((groups, -(-rows // self.out_group)), self.scale_dtype),
        }
        if self.addend == "zeros":
            arrays["zeros"] = ((groups, rows), np.dtype(np.int8))
        if self.addend == "offsets":
            arrays["offsets"] = ((groups, rows), self.scale_dtype)
        if self.is_permuted:
            arrays["order"] = ((columns,), np.dtype(np.int32))
        stack = (self.num_experts,) if self.num_experts else ()
        return {name: ((*stack, *shape), dtype) for name, (shape, dtype) in arrays.items()}

    @property
    def num_elements(self) -> int:
        """Of all matrices."""
        return max(1, self.num_experts) * math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Of all arrays."""
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in self.arrays().values())


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRows:
    """A block of rows of a packed matrix; it begins at a multiple of `out_group`.

    codes: [rows, …], scales: [groups, ceil(rows/out_group)], addends: [groups, rows] of zeros or
    offsets, None where the form has none.
    """

    codes: np.ndarray
    scales: np.ndarray
    addends: np.ndarray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainTensor:
    """A tensor that is read as floats."""

    info: TensorInfo
    source: TensorSource

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def file(self) -> Path:
        return self.info.file

    @property
    def shape(self) -> tuple[int, ...]:
        return self.info.shape

    @property
    def num_bytes(self) -> int:
        return self.info.nbytes

    @property
    def tensors(self) -> frozenset[str]:
        return frozenset({self.info.name})

    def read_floats(self, start: int, stop: int) -> np.ndarray:
        """Rows `start` to `stop`, float32."""
        return self.source.read_rows(self.info.name, start, stop, np.float32)


class FloatMatrix(ABC):
    """A matrix made of several tensors that is decoded at load.

    name: the layer's, for messages. tensors: the names of those it is made of.
    num_bytes: of them, in the file.
    """

    name: str
    file: Path
    shape: tuple[int, ...]
    num_bytes: int
    tensors: frozenset[str]

    @abstractmethod
    def read_floats(self, start: int, stop: int) -> np.ndarray:
        """Rows `start` to `stop`, float32; `start` is a multiple of `ROW_STEP`."""


class PackedMatrix(FloatMatrix):
    """A matrix that can be kept as codes, or decoded at load."""

    form: PackedForm

    @abstractmethod
    def read_packed(self, start: int, stop: int) -> PackedRows:
        """Rows `start` to `stop`; `start` is a multiple of `ROW_STEP` and of `form.out_group`."""

    def read_order(self) -> np.ndarray:
        """[in] i32: the input that each stored column multiplies, where the form is permuted."""
        raise AssertionError(f"{self.name} is not permuted")

    def read_floats(self, start: int, stop: int) -> np.ndarray:
        stored = decode_rows(self.form, self.read_packed(start, stop))
        if not self.form.is_permuted:
            return stored
        values = np.empty_like(stored)
        values[:, self.read_order()] = stored
        return values


LeafSource = PlainTensor | FloatMatrix


def check_plain(info: TensorInfo, shape: tuple[int, ...]) -> None:
    """Refuses a tensor that cannot be read as floats of this shape.

    Raises:
        CheckpointError: another shape. UnsupportedError: it is stored as integers.
    """
    if info.shape != shape:
        raise CheckpointError(
            f"tensor {info.name!r} in {info.file} has shape {list(info.shape)}, the config asks "
            f"for {list(shape)}; config and weights are not of the same model"
        )
    if info.dtype_name in _INTEGERS:
        raise UnsupportedError(
            f"tensor {info.name!r} in {info.file} is stored as {info.dtype_name}: weights are read "
            f"from {', '.join(_FLOATS)} and GGUF blocks; it is of a quantization that is not read"
        )


# A scale that is no number is said by who reads, with the tensor's name: no warning before that.
@np.errstate(invalid="ignore")
def decode_rows(form: PackedForm, rows: PackedRows) -> np.ndarray:
    """[rows, in] float32, columns as stored: what `quant_matmul`'s `dequantize` gives, bit for bit.

    Example: offsets are what the lowest code means: of 4 bits (code + 8) · scale + offset.
    """
    columns = form.shape[1]
    codes = unpack_nibbles(rows.codes)[:, :columns] if form.codes == "int4" else rows.codes
    scales = _spread(rows.scales.astype(np.float32), form.group, codes.shape, form.out_group)
    if rows.addends is None:
        return codes.astype(np.float32) * scales
    addends = _spread(rows.addends, form.group, codes.shape, 1)
    if form.addend == "zeros":
        return (codes.astype(np.int16) - addends).astype(np.float32) * scales
    values = (codes.astype(np.int16) - np.int16(_LOWEST[form.codes])).astype(np.float32)
    values *= scales
    return values + addends.astype(np.float32)


def _spread(values: np.ndarray, group: int, shape: tuple[int, ...], out_group: int) -> np.ndarray:
    """[groups, out groups] → [rows, in]."""
    wide = np.repeat(values.T, group, axis=1)[:, : shape[1]]
    return np.repeat(wide, out_group, axis=0)[: shape[0]] if out_group > 1 else wide
