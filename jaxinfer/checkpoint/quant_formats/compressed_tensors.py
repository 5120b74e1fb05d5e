"""HOST. compressed-tensors checkpoints: packed integers, int8, FP8; 4-bit floats are decoded.

`ct_config` says which layer is stored how; here are the tensors. Calibrated scales of a quantized
KV cache are read and kept; what runs the cache decides about them. Inputs with
fixed scales stay float.
"""

import re

import numpy as np

from jaxinfer.checkpoint.bit_fields import num_words, pack_nibbles, unpack_fields
from jaxinfer.checkpoint.config_reader import ConfigReader
from jaxinfer.checkpoint.leaf_source import FloatMatrix, PackedForm, PackedMatrix, PackedRows
from jaxinfer.checkpoint.quant_formats.act_order import column_order
from jaxinfer.checkpoint.quant_formats.ct_config import (
    MXFP4,
    NVFP4,
    PACKED,
    CtConfig,
    CtScheme,
    read_ct_config,
)
from jaxinfer.checkpoint.quant_formats.fp4 import Fp4Matrix
from jaxinfer.checkpoint.quant_formats.fp8 import ScaledMatrix
from jaxinfer.checkpoint.quant_formats.quant_format import (
    FLOATS,
    KvScales,
    QuantFormat,
    check_stored,
    place_of,
    require,
    scale_dtype,
    whole_groups,
)
from jaxinfer.checkpoint.tensor_file import TensorSource
from jaxinfer.errors import CheckpointError, UnsupportedError

_KV_SCALE = re.compile(r"model\.layers\.(\d+)\.self_attn\.([kv])_scale")
# Scales of inputs, which stay float here.
_INPUT_ENDINGS = (".input_scale", ".input_zero_point", ".input_global_scale")


class CompressedTensorsFormat(QuantFormat):
    """The compressed-tensors matrices of a Hugging Face folder."""

    def __init__(self, config: ConfigReader, tensors: TensorSource) -> None:
        """Raises: UnsupportedError, CheckpointError: a config not read, or without sense."""
        self._tensors = tensors
        self._config = read_ct_config(config)
        self.kv_scales = _kv_scales(self._config, tensors)
        self.summary = "compressed-tensors " + ", ".join(
            dict.fromkeys(_summary(scheme) for _, scheme in self._config.groups)
        )

    def matrix(self, layer: str, shape: tuple[int, int]) -> FloatMatrix | None:
        scheme = self._config.scheme_of(layer)
        plain = self._tensors.infos.get(f"{layer}.weight")
        if scheme is None or (plain is not None and plain.dtype_name in FLOATS):
            return None
        if scheme.format == PACKED:
            return CtPackedMatrix(self._tensors, layer, shape, scheme)
        if scheme.format in (NVFP4, MXFP4):
            return Fp4Matrix(self._tensors, layer, shape, scheme.group_size, scheme.format == NVFP4)
        kind = {"I8": "int", "F8_E4M3": "float"}.get(plain.dtype_name if plain else "", "none")
        if plain is not None and kind != scheme.kind:
            raise UnsupportedError(
                f"tensor {plain.name!r} in {plain.file} is stored as {plain.dtype_name}; its group "
                f"of the config says {scheme.kind} of {scheme.bits} bits"
            )
        return ScaledMatrix(
            self._tensors,
            layer,
            shape,
            "weight_scale",
            block=scheme.block,
            group_size=scheme.group_size,
            inputs=scheme.inputs,
            must_have_zeros=scheme.kind == "int" and not scheme.is_symmetric,
        )

    def extra_tensors(self) -> frozenset[str]:
        return frozenset(
            name
            for name in self._tensors.infos
            if name.endswith(_INPUT_ENDINGS) or _KV_SCALE.fullmatch(name)
        )


def _summary(scheme: CtScheme) -> str:
    size = f" group {scheme.group_size}" if scheme.group_size > 0 else ""
    block = f" blocks of {scheme.block[0]}×{scheme.block[1]}" if scheme.block else ""
    inputs = f", made for {scheme.inputs[0]} inputs" if scheme.inputs else ""
    return f"{scheme.format} {scheme.kind}{scheme.bits}{size}{block}{inputs}"


class CtPackedMatrix(PackedMatrix):
    """A pack-quantized layer: weight_packed [out, in·bits/32] along the inputs, codes plus
    2^(bits-1); zero points [out·bits/32, groups] along the outputs, in the same way."""

    def __init__(
        self, tensors: TensorSource, layer: str, shape: tuple[int, int], scheme: CtScheme
    ) -> None:
        self.name, self.shape, self._tensors, self._bits = layer, shape, tensors, scheme.bits
        (rows, columns), bits = shape, scheme.bits
        needed = ["weight_packed", "weight_scale", "weight_shape"]
        infos = require(tensors, layer, needed + ["weight_zero_point"] * (not scheme.is_symmetric))
        group, groups = whole_groups(columns, scheme.group_size)
        reason = f"{bits}-bit {PACKED} of group_size {scheme.group_size}"
        check_stored(infos[0], (rows, num_words(columns, bits)), ("I32",), reason)
        is_single = scheme.group_size == -1 and tensors.infos[infos[1].name].shape == (1,)
        check_stored(infos[1], (1,) if is_single else (rows, groups), FLOATS, reason)
        self._check_shape()
        self._scales = np.broadcast_to(tensors.stored(infos[1].name), (rows, groups)).T
        self._zeros = None
        if not scheme.is_symmetric:
            check_stored(infos[3], (num_words(rows, bits), groups), ("I32",), reason)
            self._zeros = self._signed(tensors.stored(infos[3].name), 0)[:rows].T
        self._order = None
        if (g_idx := f"{layer}.weight_g_idx") in tensors.infos:
            infos.append(tensors.infos[g_idx])
            check_stored(infos[-1], (columns,), ("I32",), reason)
            self._order = column_order(tensors.stored(g_idx), group, g_idx)
        self.file, self.num_bytes, self.tensors = place_of(tensors, infos)
        self.form = PackedForm(
            shape=shape,
            codes="int8" if bits == 8 else "int4",
            group=group,
            scale_dtype=scale_dtype(infos[1]),
            addend="none" if self._zeros is None else "zeros",
            is_permuted=self._order is not None,
        )

    def _check_shape(self) -> None:
        name = f"{self.name}.weight_shape"
        declared = tuple(int(size) for size in np.atleast_1d(self._tensors.stored(name)))
        if declared != self.shape:
            raise CheckpointError(
                f"tensor {name!r} says {list(declared)}, the config asks for {list(self.shape)}; "
                "config and weights are not of the same model"
            )

    def _signed(self, words: np.ndarray, axis: int) -> np.ndarray:
        fields = unpack_fields(words, self._bits, axis)
        return (fields.astype(np.int16) - (1 << (self._bits - 1))).astype(np.int8)

    def read_order(self) -> np.ndarray:
        assert self._order is not None
        return self._order

    def read_packed(self, start: int, stop: int) -> PackedRows:
        words = self._tensors.stored(f"{self.name}.weight_packed")[start:stop]
        codes = self._signed(words, 1)[:, : self.shape[1]]
        if self._order is not None:
            codes = codes[:, self._order]
        return PackedRows(
            codes=codes if self.form.codes == "int8" else pack_nibbles(codes),
            scales=self._scales[:, start:stop].astype(self.form.scale_dtype, copy=False),
            addends=None if self._zeros is None else self._zeros[:, start:stop],
        )


def _kv_scales(config: CtConfig, tensors: TensorSource) -> KvScales:
    """Scales of keys and values a layer; none where the checkpoint has none.

    Raises:
        CheckpointError: a layer has only one of the two, or a scale is no positive number.
    """
    found: dict[int, dict[str, tuple[float, ...]]] = {}
    for name, info in tensors.infos.items():
        if match := _KV_SCALE.fullmatch(name):
            values = tensors.stored(name).astype(np.float32).reshape(-1)
            if not values.size or not np.all((values > 0) & (values < np.inf)):
                raise CheckpointError(
                    f"tensor {name!r} in {info.file} holds {values.tolist()[:4]}: scales of the "
                    "KV cache must be positive numbers; fetch it again"
                )
            found.setdefault(int(match[1]), {})[match[2]] = tuple(values.tolist())
    for layer, scales in found.items():
        if len(scales) == 1:
            lacking = ({"k", "v"} - set(scales)).pop()
            raise CheckpointError(
                f"{tensors.files[0].parent} lacks 'model.layers.{layer}.self_attn.{lacking}_scale' "
                "beside its other KV scale; fetch the checkpoint again"
            )
    return {layer: (scales["k"], scales["v"]) for layer, scales in sorted(found.items())}
