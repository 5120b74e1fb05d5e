"""HOST. GGUF blocks that are codes with a scale a group, and perhaps a float offset: kept packed.

Q4_0, Q5_0, Q8_0, Q6_K and MXFP4 are codes around zero; Q4_1, Q5_1, Q4_K and Q5_K lie above an
offset. The other types are decoded at load by `gguf_file`. Knows blocks, not names of tensors.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from jaxinfer.checkpoint.bit_fields import pack_nibbles
from jaxinfer.checkpoint.gguf_header import BLOCK_TYPES
from jaxinfer.checkpoint.leaf_source import CodeKind, PackedForm, PackedMatrix, PackedRows
from jaxinfer.checkpoint.quant_formats.mxfp4 import DOUBLED, half_scales
from jaxinfer.checkpoint.quant_formats.quant_format import QuantFormat
from jaxinfer.checkpoint.tensor_file import TensorInfo, TensorSource

_BLOCKS = {block.name: block for block in BLOCK_TYPES.values()}


@dataclass(frozen=True, slots=True)
class _Parts:
    """A block type taken apart. codes: [blocks, elements] i8, as they are stored packed; scales,
    offsets: [blocks, groups of a block]."""

    codes: np.ndarray
    scales: np.ndarray
    offsets: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class _BlockReader:
    """codes: width they are kept in. group: columns under one scale."""

    read: Callable[[np.ndarray], _Parts]
    codes: CodeKind
    group: int
    scale_dtype: type
    has_offsets: bool


class GgufBlocks(QuantFormat):
    """The matrices of a GGUF file that can be kept packed."""

    def __init__(self, tensors: TensorSource) -> None:
        self._tensors = tensors
        self.summary = "gguf blocks"

    def matrix(self, layer: str, shape: tuple[int, int]) -> PackedMatrix | None:
        info = self._tensors.infos.get(f"{layer}.weight")
        if info is None or info.dtype_name not in _READERS or info.shape != shape:
            return None
        if shape[1] % _BLOCKS[info.dtype_name].num_elements:
            return None
        return GgufMatrix(self._tensors, info, 0, shape)

    def row_range(
        self, layer: str, first: int, shape: tuple[int, int], step: int = 1
    ) -> PackedMatrix | None:
        info = self._tensors.infos.get(f"{layer}.weight")
        if info is None or info.dtype_name not in _READERS or step != 1:
            return None
        if shape[1] % _BLOCKS[info.dtype_name].num_elements:
            return None
        return GgufMatrix(self._tensors, info, first, shape)


class GgufMatrix(PackedMatrix):
    """Rows of a tensor of packable blocks: of all its axes but the last, taken as one."""

    def __init__(
        self, tensors: TensorSource, info: TensorInfo, first_row: int, shape: tuple[int, int]
    ) -> None:
        self.name, self.file, self.shape = info.name, info.file, shape
        self.num_bytes = info.nbytes * math.prod(shape) // math.prod(info.shape)
        self.tensors, self._first_row = frozenset({info.name}), first_row
        self._tensors, self._reader = tensors, _READERS[info.dtype_name]
        self._block, self._num_rows = _BLOCKS[info.dtype_name], math.prod(info.shape[:-1])
        self.form = PackedForm(
            shape=shape,
            codes=self._reader.codes,
            group=self._reader.group,
            scale_dtype=np.dtype(self._reader.scale_dtype),
            addend="offsets" if self._reader.has_offsets else "none",
        )

    def read_packed(self, start: int, stop: int) -> PackedRows:
        first = self._first_row + start
        stored = self._tensors.stored(self.name).reshape(self._num_rows, -1)
        stored = stored[first : first + stop - start]
        parts = self._reader.read(stored.reshape(-1, self._block.num_bytes))
        rows = stop - start
        codes = parts.codes.reshape(rows, -1)
        return PackedRows(
            codes=pack_nibbles(codes) if self.form.codes == "int4" else codes,
            scales=parts.scales.reshape(rows, -1).T,
            addends=None if parts.offsets is None else parts.offsets.reshape(rows, -1).T,
        )


def _half(blocks: np.ndarray, start: int) -> np.ndarray:
    """The f16 at byte `start` of every block, [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2")


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """[blocks, n] bytes → [blocks, 2n]: all low halves, then all high ones."""
    return np.concatenate([packed & np.uint8(15), packed >> np.uint8(4)], axis=1)


def _bits(packed: np.ndarray) -> np.ndarray:
    """[blocks, n] bytes → [blocks, 8n] bits, the lowest first."""
    return np.unpackbits(packed, axis=1, bitorder="little")


def _signed(codes: np.ndarray, middle: int) -> np.ndarray:
    """Codes from 0 on as the i8 that is stored, `middle` less."""
    return (codes.astype(np.int16) - middle).astype(np.int8)


def _q4_0(blocks: np.ndarray) -> _Parts:
    return _Parts(_signed(_nibbles(blocks[:, 2:]), 8), _half(blocks, 0))


def _q4_1(blocks: np.ndarray) -> _Parts:
    return _Parts(_signed(_nibbles(blocks[:, 4:]), 8), _half(blocks, 0), _half(blocks, 2))


def _five(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return _nibbles(low) | _bits(high) << np.uint8(4)


def _q5_0(blocks: np.ndarray) -> _Parts:
    return _Parts(_signed(_five(blocks[:, 6:], blocks[:, 2:6]), 16), _half(blocks, 0))


def _q5_1(blocks: np.ndarray) -> _Parts:
    codes = _signed(_five(blocks[:, 8:], blocks[:, 4:8]), 128)
    return _Parts(codes, _half(blocks, 0), _half(blocks, 2))


def _q8_0(blocks: np.ndarray) -> _Parts:
    return _Parts(blocks[:, 2:].view(np.int8), _half(blocks, 0))


def _six_bit_pairs(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[blocks, 12] bytes → eight 6-bit scales and eight 6-bit minima a block.

    Bytes 0-3 and 4-7 hold the first four of each in their low six bits; bytes 8-11 hold the low
    halves of the last four, whose upper two bits are the upper two of bytes 0-7.
    """
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    low, two, four = np.uint8(63), np.uint8(2), np.uint8(4)
    upper = np.uint8(48)
    scales = [first & low, third & np.uint8(15) | first >> two & upper]
    minima = [second & low, third >> four | second >> two & upper]
    return np.concatenate(scales, axis=1), np.concatenate(minima, axis=1)


def _k_parts(blocks: np.ndarray, codes: np.ndarray) -> _Parts:
    """Scales d·sc and offsets -dmin·m of a block's eight groups, float32."""
    scales, minima = _six_bit_pairs(blocks[:, 4:16])
    d, dmin = (_half(blocks, start).astype(np.float32) for start in (0, 2))
    return _Parts(codes, d * scales.astype(np.float32), -(dmin * minima.astype(np.float32)))


def _k_nibbles(packed: np.ndarray) -> np.ndarray:
    """[blocks, 128] bytes → [blocks, 256]: every 32 bytes are 32 low, then 32 high halves."""
    return _nibbles(packed.reshape(-1, 32)).reshape(len(packed), -1)


def _q4_k(blocks: np.ndarray) -> _Parts:
    return _k_parts(blocks, _signed(_k_nibbles(blocks[:, 16:]), 8))


def _q5_k(blocks: np.ndarray) -> _Parts:
    """Bit j of byte i of qh is the upper bit of element i of group j."""
    high = _bits(blocks[:, 16:48]).reshape(len(blocks), 32, 8).swapaxes(1, 2)
    codes = _k_nibbles(blocks[:, 48:]) | high.reshape(len(blocks), -1) << np.uint8(4)
    return _k_parts(blocks, _signed(codes, 128))


def _q6_k(blocks: np.ndarray) -> _Parts:
    """Each half of a block: 64 bytes of low halves and 32 bytes of upper pairs of bits make four
    times 32 elements; the pairs of a byte belong to the four in turn."""
    low = blocks[:, :128].reshape(-1, 64)
    pairs = blocks[:, 128:192].reshape(-1, 32)
    high = [pairs >> np.uint8(shift) & np.uint8(3) for shift in (0, 2, 4, 6)]
    codes = _nibbles(low) | np.concatenate(high, axis=1) << np.uint8(4)
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32)
    d = _half(blocks, 208).astype(np.float32)
    return _Parts(_signed(codes.reshape(len(blocks), -1), 32), d * scales)


def _mxfp4(blocks: np.ndarray) -> _Parts:
    return _Parts(DOUBLED[_nibbles(blocks[:, 1:])], half_scales(blocks[:, :1]))


_READERS = {
    "Q4_0": _BlockReader(_q4_0, "int4", 32, np.float16, False),
    "Q4_1": _BlockReader(_q4_1, "int4", 32, np.float16, True),
    "Q5_0": _BlockReader(_q5_0, "int8", 32, np.float16, False),
    "Q5_1": _BlockReader(_q5_1, "int8", 32, np.float16, True),
    "Q8_0": _BlockReader(_q8_0, "int8", 32, np.float16, False),
    "Q4_K": _BlockReader(_q4_k, "int4", 32, np.float32, True),
    "Q5_K": _BlockReader(_q5_k, "int8", 32, np.float32, True),
    "Q6_K": _BlockReader(_q6_k, "int8", 16, np.float32, False),
    "MXFP4": _BlockReader(_mxfp4, "int8", 32, ml_dtypes.bfloat16, False),
}
