"""HOST. Writes a safetensors file block by block, and any file so that it is there whole or not.

Knows names and arrays, no model.
"""

import errno
import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxinfer.checkpoint.safetensors_file import dtype_name
from jaxinfer.errors import CapacityError, CheckpointError

_ALIGNMENT = 8  # of the data: readers map it


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorToWrite:
    """blocks: its rows, a block at a time, in `dtype`; together they make `shape`."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    blocks: Callable[[], Iterable[np.ndarray]]

    @property
    def nbytes(self) -> int:
        """In the file."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


def whole_tensor(name: str, value: np.ndarray) -> TensorToWrite:
    """A tensor that is there already."""
    shape = value.shape
    return TensorToWrite(name=name, dtype=value.dtype, shape=shape, blocks=lambda: (value,))


def write_safetensors(path: Path, tensors: Sequence[TensorToWrite]) -> int:
    """Writes a file; returns its bytes.

    Raises:
        CapacityError: the disk is full. CheckpointError: it cannot be written.
    """
    header = _header(tensors)
    with written_whole(path) as temporary, temporary.open("wb") as file:
        file.write(header)
        for tensor in tensors:
            written = 0
            for block in tensor.blocks():
                assert block.dtype == tensor.dtype, (tensor.name, block.dtype)
                content = np.ascontiguousarray(block).view(np.uint8)
                file.write(content.data)
                written += content.nbytes
            assert written == tensor.nbytes, (tensor.name, written)
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def write_file(path: Path, content: bytes) -> None:
    """Writes a small file whole.

    Raises:
        CapacityError: the disk is full. CheckpointError: it cannot be written.
    """
    with written_whole(path) as temporary, temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A temporary name beside `path`, renamed to it when all is written and removed otherwise.

    Raises:
        CapacityError: the disk is full. CheckpointError: it cannot be written.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise CapacityError(
                f"{path} could not be written: {error.strerror}; free space on that disk, or write "
                "to another one"
            ) from error
        raise CheckpointError(
            f"{path} could not be written: {error}; check the folder and its permissions"
        ) from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _header(tensors: Sequence[TensorToWrite]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        entries[tensor.name] = {
            "dtype": dtype_name(tensor.dtype),
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return struct.pack("<Q", len(text)) + text
