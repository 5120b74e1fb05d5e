"""HOST. What a reader of a quantized checkpoint offers, and the checks that all of them share.

Knows tensors by name and shape, no particular format.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np

from jaxinfer.checkpoint.leaf_source import FloatMatrix, PackedMatrix
from jaxinfer.checkpoint.tensor_file import TensorInfo, TensorSource
from jaxinfer.errors import CheckpointError, UnsupportedError

# Layer → scales of its keys, of its values: one for all heads, or one a kv head.
KvScales = Mapping[int, tuple[tuple[float, ...], tuple[float, ...]]]

FLOATS = ("F64", "F32", "F16", "BF16")
_SCALE_DTYPES = {"F16": np.dtype(np.float16), "BF16": np.dtype(ml_dtypes.bfloat16)}


class QuantFormat(ABC):
    """How one checkpoint stores its quantized matrices.

    summary: for people, such as "gptq 4-bit group 32".
    kv_scales: calibrated scales of a quantized KV cache; empty where the checkpoint has none.
    """

    summary: str
    kv_scales: KvScales = {}

    @abstractmethod
    def matrix(self, layer: str, shape: tuple[int, int]) -> FloatMatrix | None:
        """The matrix [out, in] of the linear layer `layer`; None where it is stored plain.

        Raises:
            CheckpointError: a tensor of it is missing or has another shape than the config says.
            UnsupportedError: it is stored in a way that is not read.
        """

    def row_range(
        self, layer: str, first: int, shape: tuple[int, int], step: int = 1
    ) -> PackedMatrix | None:
        """The matrix that is every `step`-th row from `first` on of a tensor [experts, rows, in],
        its first two axes taken as one; None where that is not packed in a way that is kept.

        Raises:
            CheckpointError, UnsupportedError: as `matrix`.
        """
        return None

    def extra_tensors(self) -> frozenset[str]:
        """Names that belong to the quantization but to no matrix (KV scales, …)."""
        return frozenset()


def require(tensors: TensorSource, layer: str, endings: Sequence[str]) -> list[TensorInfo]:
    """The layer's tensors with these endings, all present.

    Raises:
        CheckpointError: some are missing; all are named.
    """
    names = [f"{layer}.{ending}" for ending in endings]
    missing = [name for name in names if name not in tensors.infos]
    if missing:
        raise CheckpointError(
            f"{tensors.files[0].parent} lacks {', '.join(map(repr, missing))}, without which the "
            f"quantized layer {layer!r} means nothing; fetch the checkpoint again"
        )
    return [tensors.infos[name] for name in names]


def check_stored(
    info: TensorInfo, shape: Sequence[int], dtypes: Sequence[str], reason: str
) -> None:
    """Refuses a tensor of another shape or dtype. `reason` says where the numbers come from."""
    if info.dtype_name not in dtypes:
        raise UnsupportedError(
            f"tensor {info.name!r} in {info.file} is stored as {info.dtype_name}; "
            f"{reason} wants {' or '.join(dtypes)}"
        )
    if info.shape != tuple(shape):
        raise CheckpointError(
            f"tensor {info.name!r} in {info.file} has shape {list(info.shape)}, {reason} asks for "
            f"{list(shape)}; config and weights are not of the same checkpoint, or a group size "
            "is wrong"
        )


def scale_dtype(info: TensorInfo) -> np.dtype:
    """What scales are kept in: 16 bits as they are, everything else as float32."""
    return _SCALE_DTYPES.get(info.dtype_name, np.dtype(np.float32))


def place_of(tensors: TensorSource, infos: Sequence[TensorInfo]) -> tuple[Path, int, frozenset]:
    """File of the first tensor, bytes of all, names of all."""
    return infos[0].file, sum(info.nbytes for info in infos), frozenset(i.name for i in infos)


def whole_groups(columns: int, group_size: int) -> tuple[int, int]:
    """(columns under one scale, groups); a group size of -1 is one group."""
    group = columns if group_size == -1 else min(group_size, columns)
    return group, -(-columns // group)
