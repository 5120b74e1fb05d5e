"""A GGUF writer that also writes what no tool should: other versions, byte order, types, offsets.

Python and NumPy values choose the type of a metadata entry: int → u32, float → f32, bool, str,
NumPy scalars and arrays their own type, lists of str, int (i32) or float (f32) → arrays.
"""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_SCALARS = {
    "uint8": (0, "B"),
    "int8": (1, "b"),
    "uint16": (2, "H"),
    "int16": (3, "h"),
    "uint32": (4, "I"),
    "int32": (5, "i"),
    "float32": (6, "f"),
    "bool": (7, "?"),
    "uint64": (10, "Q"),
    "int64": (11, "q"),
    "float64": (12, "d"),
}
_STRING, _ARRAY = 8, 9
_TENSOR_TYPES = {"float32": 0, "float16": 1, "int8": 24, "int16": 25, "int32": 26, "float64": 28}


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    *,
    types: Mapping[str, tuple[int, tuple[int, ...]]] | None = None,
    version: int = 3,
    order: str = "<",
    offsets: Mapping[str, int] | None = None,
) -> Path:
    """Writes one file.

    Args:
        metadata: `general.alignment` among it is honoured (default 32).
        tensors: float arrays in NumPy's axis order, or raw block bytes with an entry in `types`.
        types: name → (ggml type id, logical shape) of tensors given as raw bytes.
        order: "<" or ">". offsets: name → an offset to write instead of the true one.
    """
    alignment = int(metadata.get("general.alignment", 32))
    head = [b"GGUF", struct.pack(order + "IQQ", version, len(tensors), len(metadata))]
    head += [_string(key, order) + _entry(value, order) for key, value in metadata.items()]
    offset, data = 0, []
    for name, value in tensors.items():
        kind, shape = (types or {}).get(name) or (_TENSOR_TYPES[value.dtype.name], value.shape)
        dims = struct.pack(f"{order}I{len(shape)}Q", len(shape), *reversed(shape))
        place = (offsets or {}).get(name, offset)
        head.append(_string(name, order) + dims + struct.pack(order + "IQ", kind, place))
        data.append(_padded(value.tobytes(), alignment))
        offset += len(data[-1])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_padded(b"".join(head), alignment) + b"".join(data))
    return path


def _padded(content: bytes, alignment: int) -> bytes:
    return content + bytes(-len(content) % alignment)


def _string(text: str, order: str) -> bytes:
    content = text.encode()
    return struct.pack(order + "Q", len(content)) + content


def _entry(value: Any, order: str) -> bytes:
    """Type id and content of one metadata value."""
    if isinstance(value, str):
        return struct.pack(order + "I", _STRING) + _string(value, order)
    if isinstance(value, list) and value and isinstance(value[0], str):
        items = b"".join(_string(item, order) for item in value)
        return struct.pack(order + "IIQ", _ARRAY, _STRING, len(value)) + items
    if isinstance(value, list | np.ndarray):
        array = np.asarray(value)
        if isinstance(value, list):
            array = array.astype(np.float32 if array.dtype.kind == "f" else np.int32)
        kind, letter = _SCALARS[array.dtype.name]
        content = struct.pack(f"{order}{array.size}{letter}", *array.tolist())
        return struct.pack(order + "IIQ", _ARRAY, kind, array.size) + content
    kind, letter = _SCALARS[_scalar_name(value)]
    return struct.pack(f"{order}I{letter}", kind, value)


def _scalar_name(value: Any) -> str:
    if isinstance(value, np.generic):
        return value.dtype.name
    return {bool: "bool", int: "uint32", float: "float32"}[type(value)]
