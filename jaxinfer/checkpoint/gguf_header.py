"""HOST. The header of one GGUF file: metadata and tensor table, every count checked before use.

Numbers come from the file and may lie; Python's integers do not overflow, so sums are safe. Does
not know split files nor how blocks are decoded (`gguf_file`), nor what keys mean (`gguf_config`).
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxinfer.checkpoint.tensor_file import TensorInfo
from jaxinfer.errors import CheckpointError, UnsupportedError

_MAX_ARRAY = 2**24
_MAX_KEYS = 2**16
_MAX_TENSORS = 2**20
_MAX_NAME_BYTES = 2**16
_MAX_AXES = 4
_MAX_ARRAY_DEPTH = 4
_MAX_ALIGNMENT = 2**20
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?"} | {
    10: "Q",
    11: "q",
    12: "d",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockType:
    """A ggml tensor type: `num_bytes` hold `num_elements` along the fastest axis."""

    name: str
    num_elements: int
    num_bytes: int


BLOCK_TYPES: dict[int, BlockType] = {
    number: BlockType(name=name, num_elements=num_elements, num_bytes=num_bytes)
    for number, name, num_elements, num_bytes in (
        (0, "F32", 1, 4),
        (1, "F16", 1, 2),
        (2, "Q4_0", 32, 18),
        (3, "Q4_1", 32, 20),
        (6, "Q5_0", 32, 22),
        (7, "Q5_1", 32, 24),
        (8, "Q8_0", 32, 34),
        (10, "Q2_K", 256, 84),
        (11, "Q3_K", 256, 110),
        (12, "Q4_K", 256, 144),
        (13, "Q5_K", 256, 176),
        (14, "Q6_K", 256, 210),
        (16, "IQ2_XXS", 256, 66),
        (17, "IQ2_XS", 256, 74),
        (18, "IQ3_XXS", 256, 98),
        (19, "IQ1_S", 256, 50),
        (20, "IQ4_NL", 32, 18),
        (21, "IQ3_S", 256, 110),
        (22, "IQ2_S", 256, 82),
        (23, "IQ4_XS", 256, 136),
        (28, "F64", 1, 8),
        (29, "IQ1_M", 256, 56),
        (30, "BF16", 1, 2),
        (34, "TQ1_0", 256, 54),
        (35, "TQ2_0", 256, 66),
        (39, "MXFP4", 32, 17),
    )
}
_REFUSED_TYPES = {
    4: "Q4_2",
    5: "Q4_3",
    9: "Q8_1",
    15: "Q8_K",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
    40: "NVFP4",
    41: "Q1_0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """What a file says of itself. `end`: the byte after its last tensor."""

    metadata: dict[str, Any]
    infos: dict[str, TensorInfo]
    end: int


def read_gguf_header(path: Path, content: mmap.mmap) -> GgufHeader:
    """Metadata and tensor table of one file.

    Raises:
        CheckpointError: not GGUF, big-endian, damaged or truncated (naming the tensor).
        UnsupportedError: a version or a tensor type that is not read.
    """
    cursor = _Cursor(path, content)
    _check_magic(path, content)
    cursor.place = 8
    num_tensors, num_keys = cursor.unpack("<QQ")
    cursor.check_count(num_tensors, _MAX_TENSORS, 25, "tensors")
    cursor.check_count(num_keys, _MAX_KEYS, 13, "metadata keys")
    metadata = _metadata(cursor, num_keys)
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 1 <= alignment <= _MAX_ALIGNMENT or alignment % 8:
        raise CheckpointError(
            f"{path}: general.alignment={alignment!r} must be a multiple of 8, at most "
            f"{_MAX_ALIGNMENT}; the file is damaged: fetch it again"
        )
    entries = [_table_entry(cursor) for _ in range(num_tensors)]
    begin = -(-cursor.place // alignment) * alignment
    infos: dict[str, TensorInfo] = {}
    for name, dims, number, offset in entries:
        if name in infos:
            raise CheckpointError(f"{path} lists tensor {name!r} twice; the file is damaged")
        if offset % alignment:
            raise CheckpointError(
                f"{path}: tensor {name!r} has offset {offset}, no multiple of the alignment "
                f"{alignment}; the file is damaged: fetch it again"
            )
        infos[name] = _tensor(path, name, dims, number, begin + offset)
    return GgufHeader(metadata=metadata, infos=infos, end=_check_spans(path, infos, begin, content))


def _check_magic(path: Path, content: mmap.mmap) -> None:
    if content[:4] != b"GGUF":
        hint = " (a Git LFS pointer: fetch the file itself)" if content[:4] == b"vers" else ""
        raise CheckpointError(
            f"{path} begins with {content[:4]!r}, a GGUF file begins with b'GGUF'{hint}; "
            "check that it is the right file"
        )
    version = struct.unpack_from("<I", content, 4)[0]
    if version & 0xFFFF == 0 and version:
        raise CheckpointError(
            f"{path} has version word {version:#010x}: the file is big-endian, only little-endian "
            "files are read; convert it with gguf-convert-endian"
        )
    if version not in (2, 3):
        raise UnsupportedError(f"{path} has GGUF version {version}; versions 2 and 3 are read")


class _Cursor:
    """A place in the file that never passes its end."""

    def __init__(self, path: Path, content: mmap.mmap) -> None:
        self.path, self.content, self.size = path, content, len(content)
        self.place = 0

    def unpack(self, layout: str) -> tuple[Any, ...]:
        step = struct.calcsize(layout)
        self.check_room(step)
        values = struct.unpack_from(layout, self.content, self.place)
        self.place += step
        return values

    def string(self) -> bytes:
        num_bytes = self.unpack("<Q")[0]
        self.check_room(num_bytes)
        self.place += num_bytes
        return self.content[self.place - num_bytes : self.place]

    def name(self) -> str:
        """A key or a tensor name: bounded, and valid UTF-8."""
        content = self.string()
        try:
            if 0 < len(content) <= _MAX_NAME_BYTES:
                return content.decode()
        except UnicodeDecodeError:
            pass
        raise CheckpointError(
            f"{self.path} has a name of {len(content)} bytes beginning {content[:20]!r} before "
            f"byte {self.place}: names are UTF-8 of 1 to {_MAX_NAME_BYTES} bytes; it is damaged"
        )

    def strings(self, count: int, key: str) -> list[str]:
        # The hot loop of a vocabulary: 262,144 entries.
        content, place, limit = self.content, self.place, self.size - 8
        read_length, result = struct.Struct("<Q").unpack_from, []
        try:
            for _ in range(count):
                stop = (
                    place + 8 + read_length(content, place)[0] if place <= limit else self.size + 1
                )
                if stop > self.size:
                    self.place = place
                    self.check_room(stop - place)
                result.append(content[place + 8 : stop].decode())
                place = stop
        except UnicodeDecodeError as error:
            raise CheckpointError(
                f"{self.path}: entry {len(result)} of {key!r} is not UTF-8 ({error}); fetch the "
                "file again or mend the entry"
            ) from error
        self.place = place
        return result

    def check_room(self, num_bytes: int) -> None:
        if self.place + num_bytes > self.size:
            raise CheckpointError(
                f"{self.path} is truncated or damaged: its header wants {num_bytes} bytes at byte "
                f"{self.place}, the file has {self.size}; fetch it again"
            )

    def check_count(self, count: int, limit: int, least_bytes: int, what: str) -> None:
        limit = min(limit, (self.size - self.place) // least_bytes)
        if count > limit:
            raise CheckpointError(
                f"{self.path} declares {count} {what}, at most {limit} can be in this file of "
                f"{self.size} bytes; it is truncated or damaged: fetch it again"
            )


def _metadata(cursor: _Cursor, num_keys: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(num_keys):
        key = cursor.name()
        if key in metadata:
            raise CheckpointError(f"{cursor.path} has the key {key!r} twice; it is damaged")
        metadata[key] = _value(cursor, key, cursor.unpack("<I")[0], 0)
    return metadata


def _value(cursor: _Cursor, key: str, kind: int, depth: int) -> Any:
    if kind in _SCALARS:
        return cursor.unpack("<" + _SCALARS[kind])[0]
    if kind == _STRING:
        return cursor.string().decode("utf-8", "replace")
    if kind != _ARRAY or depth > _MAX_ARRAY_DEPTH:
        raise CheckpointError(
            f"{cursor.path}: key {key!r} has value type {kind} at depth {depth}, known are 0 to 12 "
            f"and arrays {_MAX_ARRAY_DEPTH} deep; the file is damaged or newer than this reader"
        )
    inner, count = cursor.unpack("<IQ")
    least_bytes = struct.calcsize(_SCALARS[inner]) if inner in _SCALARS else 8
    cursor.check_count(count, _MAX_ARRAY, least_bytes, f"entries of {key!r}")
    if inner in _SCALARS:
        return list(cursor.unpack(f"<{count}{_SCALARS[inner]}"))
    if inner == _STRING:
        return cursor.strings(count, key)
    return [_value(cursor, key, inner, depth + 1) for _ in range(count)]


def _table_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.name()
    num_axes = cursor.unpack("<I")[0]
    if not 1 <= num_axes <= _MAX_AXES:
        raise CheckpointError(
            f"{cursor.path}: tensor {name!r} has {num_axes} axes, it must have 1 to {_MAX_AXES}; "
            "the file is damaged: fetch it again"
        )
    dims = cursor.unpack(f"<{num_axes}Q")
    number, offset = cursor.unpack("<IQ")
    return name, dims, number, offset


def _tensor(path: Path, name: str, dims: tuple[int, ...], number: int, offset: int) -> TensorInfo:
    if number not in BLOCK_TYPES:
        title = _REFUSED_TYPES.get(number, "unknown")
        raise UnsupportedError(
            f"{path}: tensor {name!r} has type {title} ({number}), which is not read; known: "
            f"{', '.join(block.name for block in BLOCK_TYPES.values())}"
        )
    block = BLOCK_TYPES[number]
    if min(dims) < 1 or dims[0] % block.num_elements:
        raise CheckpointError(
            f"{path}: tensor {name!r} has dimensions {list(dims)}: they must be positive, the "
            f"first a multiple of the {block.num_elements} elements of a {block.name} block"
        )
    num_bytes = math.prod(dims) // block.num_elements * block.num_bytes
    return TensorInfo(
        name=name,
        shape=tuple(reversed(dims)),
        dtype_name=block.name,
        nbytes=num_bytes,
        file=path,
        offset=offset,
    )


def _check_spans(path: Path, infos: dict[str, TensorInfo], begin: int, content: mmap.mmap) -> int:
    """Every tensor inside the file and none upon another; gives the end of the last."""
    end = begin
    for info in sorted(infos.values(), key=lambda info: info.offset):
        if info.offset + info.nbytes > len(content):
            raise CheckpointError(
                f"{path} is truncated or damaged: tensor {info.name!r} lies at bytes "
                f"{info.offset} to {info.offset + info.nbytes}, the file has {len(content)}; "
                "fetch it again"
            )
        if info.offset < end:
            raise CheckpointError(
                f"{path}: tensor {info.name!r} begins at byte {info.offset}, inside the one before "
                f"it, which ends at {end}; the file is damaged: fetch it again"
            )
        end = info.offset + info.nbytes
    return end
