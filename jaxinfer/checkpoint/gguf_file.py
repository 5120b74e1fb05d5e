"""HOST. GGUF files by memory map, split ones too, decoded to floats a block of rows at a time.

Knows the file layout (`gguf_header`) and how to put parts together; does not know what metadata
keys mean nor which tensors a model needs.
"""

import math
import mmap
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

from jaxinfer.checkpoint.gguf_header import BLOCK_TYPES, GgufHeader, read_gguf_header
from jaxinfer.checkpoint.tensor_file import TensorInfo, map_file
from jaxinfer.errors import CheckpointError

_PART_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
_MIN_BYTES = 24
_DECODE_ELEMENTS = 2048
_PLAIN: dict[str, np.dtype] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F64": np.dtype(np.float64),
}
_BLOCKS = {block.name: block for block in BLOCK_TYPES.values()}


class GgufFiles:
    """Metadata and tensors of a GGUF file and its further parts (a `TensorSource`)."""

    def __init__(self, headers: Mapping[Path, GgufHeader], maps: Mapping[Path, mmap.mmap]) -> None:
        self.files = tuple(headers)
        self.metadata: dict[str, Any] = headers[self.files[0]].metadata
        self.infos: dict[str, TensorInfo] = {}
        self._maps = maps
        for path, header in headers.items():
            for name, info in header.infos.items():
                if name in self.infos:
                    raise CheckpointError(
                        f"tensor {name!r} is in {self.infos[name].file} and in {path}; "
                        "the parts do not belong together: fetch them again"
                    )
                self.infos[name] = info

    def read_rows(
        self, name: str, start: int, stop: int, dtype: DTypeLike, *, row_axes: int = 1
    ) -> np.ndarray:
        """Rows `start` to `stop` of the first axes in `dtype`; a tensor of one axis as a whole."""
        info = self.infos[name]
        shape, stored = info.shape, _PLAIN.get(info.dtype_name)
        if len(shape) == 1 and stored is None:
            return self._decode(info, 0, info.nbytes)[start:stop].astype(dtype, copy=False)
        row_bytes = info.nbytes // math.prod(shape[:row_axes])
        place, num_bytes = start * row_bytes, (stop - start) * row_bytes
        if stored is None:
            flat = self._decode(info, place, num_bytes)
        else:
            content = self._maps[info.file]
            count = num_bytes // stored.itemsize
            flat = np.frombuffer(content, stored, count, info.offset + place)
        return flat.reshape(stop - start, *shape[row_axes:]).astype(dtype, copy=False)

    def stored(self, name: str) -> np.ndarray:
        """The tensor's bytes, [rows, bytes of a row], a view of the file."""
        info = self.infos[name]
        flat = np.frombuffer(self._maps[info.file], np.uint8, info.nbytes, info.offset)
        return flat.reshape(info.shape[0] if len(info.shape) > 1 else 1, -1)

    def _decode(self, info: TensorInfo, place: int, num_bytes: int) -> np.ndarray:
        """Whole blocks to float32, with the gguf package's own arithmetic."""
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        kind, block = GGMLQuantizationType[info.dtype_name], _BLOCKS[info.dtype_name]
        packed = np.frombuffer(self._maps[info.file], np.uint8, num_bytes, info.offset + place)
        # The decoder takes 16 rows at a time; rows of this many elements keep it in the cache.
        row_bytes = _DECODE_ELEMENTS // block.num_elements * block.num_bytes
        whole = num_bytes // row_bytes * row_bytes
        if whole == num_bytes:
            return dequantize(packed.reshape(-1, row_bytes), kind).reshape(-1)
        decoded = np.empty(num_bytes // block.num_bytes * block.num_elements, np.float32)
        split = whole // block.num_bytes * block.num_elements
        if whole:
            decoded[:split] = dequantize(packed[:whole].reshape(-1, row_bytes), kind).reshape(-1)
        decoded[split:] = dequantize(packed[whole:].reshape(1, -1), kind).reshape(-1)
        return decoded


def open_gguf(path: Path) -> GgufFiles:
    """A GGUF file, or all parts of a split one when `path` is the first; reads headers only.

    Raises:
        CheckpointError: missing, damaged or truncated; a part that is not the first (saying which
            to open), missing parts (named), or parts joined into one file without merging.
        UnsupportedError: a version or a tensor type that is not read.
    """
    headers, maps = {}, {}
    headers[path], maps[path] = _open_one(path)
    count = headers[path].metadata.get("split.count", 0)
    if type(count) is not int or count <= 1:
        return GgufFiles(headers, maps)
    for part in _part_paths(path, headers[path].metadata)[1:]:
        headers[part], maps[part] = _open_one(part)
    _check_parts(headers, count)
    return GgufFiles(headers, maps)


def _open_one(path: Path) -> tuple[GgufHeader, mmap.mmap]:
    content = map_file(path, _MIN_BYTES)
    header = read_gguf_header(path, content)
    alignment = header.metadata.get("general.alignment", 32)
    for place in (header.end, -(-header.end // alignment) * alignment):
        if content[place : place + 4] == b"GGUF":
            raise CheckpointError(
                f"{path} holds a second GGUF file after byte {place}: parts of a split model were "
                "joined with cat; open the first part, or merge them with gguf-split --merge"
            )
    return header, content


def _part_paths(path: Path, metadata: Mapping[str, Any]) -> list[Path]:
    number, count = metadata.get("split.no", 0), metadata["split.count"]
    if type(number) is not int or not 0 <= number < count:
        raise CheckpointError(
            f"{path} has split.no={number!r} and split.count={count}: it must be a number below "
            "the count; the file is damaged: fetch it again"
        )
    match = _PART_NAME.fullmatch(path.name)
    if not match or int(match[3]) != count or int(match[2]) != number + 1:
        raise CheckpointError(
            f"{path} says that it is part {number + 1} of {count}, its name does not; parts are "
            f"named NAME-{number + 1:05d}-of-{count:05d}.gguf: rename it, or fetch the parts "
            "again if they were joined"
        )
    names = [f"{match[1]}-{part + 1:05d}-of-{count:05d}.gguf" for part in range(count)]
    if number != 0:
        raise CheckpointError(
            f"{path} is part {number + 1} of a model split into {count}; open the first part "
            f"instead: {path.with_name(names[0])}"
        )
    missing = [name for name in names if not path.with_name(name).is_file()]
    if missing:
        raise CheckpointError(
            f"{path.parent} lacks {len(missing)} of the {count} parts of {path.name}: "
            f"{', '.join(missing[:20])}; fetch them, half a model is not loaded"
        )
    return [path.with_name(name) for name in names]


def _check_parts(headers: Mapping[Path, GgufHeader], count: int) -> None:
    for number, (path, header) in enumerate(headers.items()):
        found = header.metadata.get("split.no"), header.metadata.get("split.count")
        if found != (number, count):
            raise CheckpointError(
                f"{path} has split.no={found[0]} and split.count={found[1]}, expected {number} and "
                f"{count}; the parts do not belong together: fetch them again"
            )
    first = next(iter(headers))
    declared = headers[first].metadata.get("split.tensors.count")
    present = sum(len(header.infos) for header in headers.values())
    if declared is not None and declared != present:
        raise CheckpointError(
            f"{first} declares split.tensors.count={declared}, its {count} parts hold {present} "
            "tensors; the parts do not belong together: fetch them again"
        )
