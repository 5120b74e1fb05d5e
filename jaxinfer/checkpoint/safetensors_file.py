"""HOST. Safetensors files by memory map: one file, shards with an index, every dtype with FP8.

The header is parsed here because the library's NumPy reader knows no FP8. Every length and offset
is checked against the file before it is used. Knows no model: names are only names.
"""

import math
import mmap
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

from jaxinfer.checkpoint.json_file import parse_json, read_json
from jaxinfer.checkpoint.tensor_file import TensorInfo, map_file
from jaxinfer.errors import CheckpointError, UnsupportedError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_MAX_HEADER_BYTES = 100_000_000
_MAX_AXES = 8
_SHARD_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.safetensors")
_DTYPES: dict[str, np.dtype] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype(np.uint16),
    "I16": np.dtype(np.int16),
    "U32": np.dtype(np.uint32),
    "I32": np.dtype(np.int32),
    "U64": np.dtype(np.uint64),
    "I64": np.dtype(np.int64),
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
}


def dtype_name(dtype: np.dtype) -> str:
    """What the format calls a dtype."""
    return next(name for name, one in _DTYPES.items() if one == dtype)


class SafetensorsFiles:
    """The tensors of one or many safetensors files (a `TensorSource`)."""

    def __init__(self, paths: tuple[Path, ...]) -> None:
        self.files = paths
        self.infos: dict[str, TensorInfo] = {}
        self._maps: dict[Path, mmap.mmap] = {}
        for path in paths:
            self._maps[path] = map_file(path, 8)
            self._add(read_header(path, self._maps[path]))

    def _add(self, infos: Mapping[str, TensorInfo]) -> None:
        for name, info in infos.items():
            if name in self.infos:
                raise CheckpointError(
                    f"tensor {name!r} is in {self.infos[name].file} and in {info.file}; "
                    "remove the file that does not belong to the checkpoint"
                )
            self.infos[name] = info

    def read_rows(
        self, name: str, start: int, stop: int, dtype: DTypeLike, *, row_axes: int = 1
    ) -> np.ndarray:
        """Rows `start` to `stop` of the first axes in `dtype`; a view where it is stored so."""
        info = self.infos[name]
        stored, row = _DTYPES[info.dtype_name], math.prod(info.shape[row_axes:])
        offset = info.offset + start * row * stored.itemsize
        flat = np.frombuffer(self._maps[info.file], stored, (stop - start) * row, offset)
        return flat.reshape(stop - start, *info.shape[row_axes:]).astype(dtype, copy=False)

    def stored(self, name: str) -> np.ndarray:
        """The whole tensor in its own dtype, a view of the file."""
        info = self.infos[name]
        count = math.prod(info.shape)
        flat = np.frombuffer(self._maps[info.file], _DTYPES[info.dtype_name], count, info.offset)
        return flat.reshape(info.shape)


def find_safetensors(folder: Path) -> tuple[Path, ...]:
    """The weight files of a Hugging Face folder, all of them present.

    Raises:
        CheckpointError: no weights, an index or a shard name that names missing files (all are
            listed), or several files and nothing that says which belong together.
        UnsupportedError: pickled weights only.
    """
    if (folder / SINGLE_FILE).is_file():
        return (folder / SINGLE_FILE,)
    if (folder / INDEX_FILE).is_file():
        return _present(folder, _indexed_names(folder), INDEX_FILE)
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    shards = [match for name in names if (match := _SHARD_NAME.fullmatch(name))]
    if shards and len(shards) == len(names) and len({match[1] for match in shards}) == 1:
        stem, count = shards[0][1], shards[0][3]
        wanted = [f"{stem}-{i + 1:05d}-of-{count}.safetensors" for i in range(int(count))]
        return _present(folder, wanted, "the shard names")
    if len(names) == 1:
        return (folder / names[0],)
    if names:
        raise CheckpointError(
            f"{folder} holds {', '.join(names[:5])} and neither {SINGLE_FILE} nor {INDEX_FILE} to "
            "say which belong together; add the index or keep one file"
        )
    pickled = [path.name for ending in ("*.bin", "*.pt", "*.pth") for path in folder.glob(ending)]
    if pickled:
        raise UnsupportedError(
            f"{folder} holds its weights only as {sorted(pickled)[0]}: pickled files can run code "
            "and are never read; convert the checkpoint to safetensors"
        )
    raise CheckpointError(f"{folder} holds no *.safetensors file; fetch the weights")


def _indexed_names(folder: Path) -> list[str]:
    path = folder / INDEX_FILE
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path} has no 'weight_map' of names to files; fetch it again")
    for name in weight_map.values():
        if not isinstance(name, str) or Path(name).name != name or name in ("", ".", ".."):
            raise CheckpointError(
                f"{path} names the file {name!r}: it must be a plain name inside the folder"
            )
    return sorted(set(weight_map.values()))


def _present(folder: Path, names: list[str], told_by: str) -> tuple[Path, ...]:
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{folder} lacks {len(missing)} of the {len(names)} weight files that {told_by} names: "
            f"{', '.join(missing[:20])}; fetch them, an incomplete checkpoint is not loaded"
        )
    return tuple(folder / name for name in names)


def open_safetensors(folder: Path) -> SafetensorsFiles:
    """All tensors of a Hugging Face folder; reads headers only.

    Raises:
        CheckpointError: missing or damaged files, or an index that names a tensor no file holds.
    """
    source = SafetensorsFiles(find_safetensors(folder))
    if not (folder / SINGLE_FILE).is_file() and (folder / INDEX_FILE).is_file():
        weight_map = read_json(folder / INDEX_FILE)["weight_map"]
        for name, file in weight_map.items():
            if name not in source.infos or source.infos[name].file.name != file:
                raise CheckpointError(
                    f"{INDEX_FILE} places tensor {name!r} in {folder / file}, which does not hold "
                    "it; fetch index and shards of the same version"
                )
    return source


def read_header(path: Path, content: mmap.mmap) -> dict[str, TensorInfo]:
    """The tensors that one file's header lists, checked against its size.

    Raises:
        CheckpointError: damaged or truncated. UnsupportedError: a dtype that is not read.
    """
    num_bytes = struct.unpack_from("<Q", content, 0)[0]
    limit = min(_MAX_HEADER_BYTES, len(content) - 8)
    if num_bytes > limit:
        hint = "it is a Git LFS pointer" if content[:8] == b"version " else "the file is damaged"
        raise CheckpointError(
            f"{path} declares a header of {num_bytes} bytes, at most {limit} can be in a file of "
            f"{len(content)} bytes; {hint}: fetch it again"
        )
    header = parse_json(content[8 : 8 + num_bytes], f"the header of {path}")
    header.pop("__metadata__", None)
    begin = 8 + num_bytes
    infos = {name: _tensor(path, name, entry, begin) for name, entry in header.items()}
    _check_layout(path, infos, begin, len(content))
    return infos


def _tensor(path: Path, name: str, entry: Any, begin: int) -> TensorInfo:
    where = f"{path}: tensor {name!r}"
    entry = entry if isinstance(entry, dict) else {}
    shape, span, kind = (entry.get(key) for key in ("shape", "data_offsets", "dtype"))
    if not _naturals(shape) or not _naturals(span) or len(span) != 2 or len(shape) > _MAX_AXES:
        raise CheckpointError(
            f"{where} has shape {shape!r} and data_offsets {span!r}: they must be lists of "
            f"non-negative integers, at most {_MAX_AXES} axes and two offsets; fetch it again"
        )
    if kind not in _DTYPES:
        raise UnsupportedError(
            f"{where} has dtype {kind!r}, which is not read; known: {', '.join(_DTYPES)}"
        )
    num_bytes = math.prod(shape) * _DTYPES[kind].itemsize
    if span[1] - span[0] != num_bytes:
        raise CheckpointError(
            f"{where} spans {span[1] - span[0]} bytes, {kind}{shape} needs {num_bytes}; "
            "the file is damaged: fetch it again"
        )
    return TensorInfo(
        name=name,
        shape=tuple(shape),
        dtype_name=kind,
        nbytes=num_bytes,
        file=path,
        offset=begin + span[0],
    )


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_layout(path: Path, infos: Mapping[str, TensorInfo], begin: int, size: int) -> None:
    """The format wants the tensors end to end: no gap, no overlap, nothing after the last."""
    end = begin
    for info in sorted(infos.values(), key=lambda info: (info.offset, info.nbytes)):
        if info.offset + info.nbytes > size:
            raise CheckpointError(
                f"{path} is truncated: tensor {info.name!r} ends at byte "
                f"{info.offset + info.nbytes}, the file has {size}; fetch it again"
            )
        if info.offset != end:
            raise CheckpointError(
                f"{path}: tensor {info.name!r} begins at byte {info.offset}, the one before ends "
                f"at {end}; tensors must lie end to end: the file is damaged"
            )
        end += info.nbytes
    if end != size:
        raise CheckpointError(
            f"{path} has {size} bytes, its tensors end at {end}; the file is damaged or a "
            "download is not complete: fetch it again"
        )
