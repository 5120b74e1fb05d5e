"""HOST. One tensor of a file as a record, and what every reader of tensor files offers.

Knows neither formats (`safetensors_file`, `gguf_file`) nor which tensors a model needs.
"""

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import DTypeLike

from jaxinfer.errors import CheckpointError

CheckpointKind = Literal["hf", "gguf", "native"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """Where a tensor lies and what it is.

    shape: in NumPy's order, matrices `[out, in]`.
    dtype_name: the format's own name of the stored type (`BF16`, `Q4_K`, …).
    nbytes: in the file. offset: bytes from the start of `file`.
    """

    name: str
    shape: tuple[int, ...]
    dtype_name: str
    nbytes: int
    file: Path
    offset: int


class TensorSource(Protocol):
    """Tensors by name, decoded a block of rows at a time."""

    @property
    def infos(self) -> Mapping[str, TensorInfo]: ...

    @property
    def files(self) -> tuple[Path, ...]: ...

    def read_rows(
        self, name: str, start: int, stop: int, dtype: DTypeLike, *, row_axes: int = 1
    ) -> np.ndarray:
        """Rows `start` to `stop` of the first axis, decoded; with `row_axes` 2 of the first two
        axes as if they were one.

        Where nothing has to be converted the result may be a read-only view of the file.
        """
        ...

    def stored(self, name: str) -> np.ndarray:
        """The whole tensor as it is stored, a read-only view: in its own dtype and shape, or the
        bytes of GGUF blocks as [rows, bytes of a row]."""
        ...


def map_file(path: Path, min_bytes: int) -> mmap.mmap:
    """The file's bytes as a read-only memory map.

    Raises:
        CheckpointError: it cannot be read, or is shorter than any file of its kind can be.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size >= min_bytes:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}; check the path") from error
    raise CheckpointError(
        f"{path} has {size} bytes, a file of this kind has at least {min_bytes}; "
        "it is empty or truncated: fetch it again"
    )
