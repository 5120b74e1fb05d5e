"""HOST. FP8 matrices: one scale a tensor, an output, a group of columns or a rectangle of elements.

`FineGrainedFp8Format` is Hugging Face's `quant_method: "fp8"`; compressed-tensors reads its own
float-quantized and int-quantized layers through `ScaledMatrix` too.
"""

from typing import Literal

import ml_dtypes
import numpy as np

from jaxinfer.checkpoint.config_reader import ConfigReader
from jaxinfer.checkpoint.leaf_source import (
    CodeKind,
    InputRounding,
    PackedForm,
    PackedMatrix,
    PackedRows,
)
from jaxinfer.checkpoint.quant_formats.quant_format import (
    FLOATS,
    QuantFormat,
    check_stored,
    place_of,
    require,
    scale_dtype,
)
from jaxinfer.checkpoint.tensor_file import TensorInfo, TensorSource
from jaxinfer.errors import CheckpointError, UnsupportedError

_SCALES = (*FLOATS, "F8_E8M0")
_CODES = {"F8_E4M3": "fp8", "I8": "int8"}


class FineGrainedFp8Format(QuantFormat):
    """The FP8 matrices of a Hugging Face folder, W = code · weight_scale_inv (times, not over)."""

    def __init__(self, config: ConfigReader, tensors: TensorSource) -> None:
        """Raises: UnsupportedError, CheckpointError: a config not read, or without sense."""
        if config.get("fmt", "e4m3") not in ("e4m3", "float8_e4m3fn"):
            raise UnsupportedError(f"{config.place}: fmt={config['fmt']!r} is not read; only e4m3")
        block = config.get("weight_block_size")
        self._tensors, self._block = tensors, None if block is None else _block(block, config.place)
        self._rounds = config.get("activation_scheme", "dynamic") == "dynamic"
        self.summary = "fp8 " + ("" if block is None else f"blocks of {block[0]}×{block[1]}")

    def matrix(self, layer: str, shape: tuple[int, int]) -> PackedMatrix | None:
        weight = self._tensors.infos.get(f"{layer}.weight")
        if weight is None or weight.dtype_name != "F8_E4M3":
            return None  # left plain, or missing or of a wrong kind: whoever asked will say so
        old = f"{layer}.weight_scale" in self._tensors.infos
        scale = "weight_scale" if old else "weight_scale_inv"
        block = None if old else self._block
        inputs = ("fp8", block[1] if block else -1) if self._rounds else None
        return ScaledMatrix(self._tensors, layer, shape, scale, block=block, inputs=inputs)

    def extra_tensors(self) -> frozenset[str]:
        """Scales of activations, which stay float here."""
        return frozenset(name for name in self._tensors.infos if name.endswith(".input_scale"))


class ScaledMatrix(PackedMatrix):
    """A layer whose codes lie in `weight` itself (FP8 or int8), with scales beside it."""

    def __init__(
        self,
        tensors: TensorSource,
        layer: str,
        shape: tuple[int, int],
        scale: str,
        *,
        block: tuple[int, int] | None = None,
        group_size: int = -1,
        inputs: tuple[Literal["int8", "fp8"], int] | None = None,
        must_have_zeros: bool = False,
    ) -> None:
        """block: (rows, columns) under one scale. group_size: columns under one scale of a row.
        inputs: kind and group size of inputs that are meant to be rounded."""
        self.name, self.shape, self._tensors = layer, shape, tensors
        endings = ["weight", scale] + ["weight_zero_point"] * must_have_zeros
        infos = require(tensors, layer, endings)[:2]
        check_stored(infos[0], shape, tuple(_CODES), "a quantized layer")
        self._scales = _grid(tensors, infos[1], shape, block, group_size)
        zeros = tensors.infos.get(f"{layer}.weight_zero_point")
        self._zeros = None
        if zeros is not None:
            infos.append(zeros)
            check_stored(zeros, infos[1].shape, ("I8",), "asymmetric int8")
            stored = np.atleast_1d(tensors.stored(zeros.name))
            by_row = stored.reshape(-1, 1 if stored.ndim == 1 else stored.shape[1])
            self._zeros = np.broadcast_to(by_row.T, self._scales.shape)
        self.file, self.num_bytes, self.tensors = place_of(tensors, infos)
        codes: CodeKind = "fp8" if infos[0].dtype_name == "F8_E4M3" else "int8"
        self.form = PackedForm(
            shape=shape,
            codes=codes,
            group=min(block[1] if block else group_size, shape[1])
            if block or group_size > 0
            else shape[1],
            out_group=min(block[0], shape[0]) if block else 1,
            scale_dtype=scale_dtype(infos[1]),
            addend="none" if self._zeros is None else "zeros",
            inputs=_input_rounding(inputs, shape[1]),
        )

    def read_packed(self, start: int, stop: int) -> PackedRows:
        codes = self._tensors.stored(f"{self.name}.weight")[start:stop]
        rows = slice(start // self.form.out_group, -(-stop // self.form.out_group))
        return PackedRows(
            codes=codes,
            scales=self._scales[:, rows].astype(self.form.scale_dtype, copy=False),
            addends=None if self._zeros is None else self._zeros[:, start:stop],
        )


def _input_rounding(
    inputs: tuple[Literal["int8", "fp8"], int] | None, columns: int
) -> InputRounding | None:
    if inputs is None:
        return None
    group = columns if inputs[1] == -1 else inputs[1]
    return None if columns % group else InputRounding(kind=inputs[0], group=group)


def _grid(
    tensors: TensorSource,
    info: TensorInfo,
    shape: tuple[int, int],
    block: tuple[int, int] | None,
    group_size: int,
) -> np.ndarray:
    """Scales as [groups, out groups]; one for all, one an output, one a group, or one a block.

    A scale of shape [], [1] or [1, 1] is one scale, never a grid; [out] is [out, 1].
    """
    rows, columns = shape
    if info.dtype_name not in _SCALES:
        raise UnsupportedError(
            f"tensor {info.name!r} in {info.file} is stored as {info.dtype_name}; scales are read "
            f"from {', '.join(_SCALES)}"
        )
    values = tensors.stored(info.name)
    if values.dtype == ml_dtypes.float8_e8m0fnu or info.dtype_name in ("F64", "F32"):
        values = values.astype(np.float32)
    if block is not None:
        check_stored(
            info,
            (-(-rows // block[0]), -(-columns // block[1])),
            _SCALES,
            f"blocks of {block[0]}×{block[1]}",
        )
        return values.T
    if values.size == 1:
        return np.broadcast_to(values.reshape(1, 1), (1, rows))
    if values.ndim == 1:
        values = values[:, None]
    groups = -(-columns // group_size) if group_size > 0 else 1
    if values.shape != (rows, groups):
        raise CheckpointError(
            f"tensor {info.name!r} in {info.file} has shape {list(info.shape)}; a layer "
            f"[{rows}, {columns}] takes one scale, or [{rows}, {groups}] of them; config and "
            "weights are not of the same checkpoint"
        )
    return values.T


def _block(block: object, place: str) -> tuple[int, int]:
    is_pair = isinstance(block, list) and len(block) == 2
    if not is_pair or not all(type(size) is int and size >= 1 for size in block):  # type: ignore[union-attr]
        raise CheckpointError(
            f"{place}: weight_block_size={block!r} must be two positive integers; mend it"
        )
    return block[0], block[1]  # type: ignore[index]
