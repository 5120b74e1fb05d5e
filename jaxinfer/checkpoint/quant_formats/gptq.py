"""HOST. GPTQ checkpoints: 2, 3, 4 and 8 bits, zero points of both versions, act-order, per channel.

qweight [in·bits/32, out] is packed down the inputs, qzeros [groups, out·bits/32] along the outputs.
Version 1 stores zero points less one, and wraps. Other packings are refused by name.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxinfer.checkpoint.bit_fields import num_words, pack_nibbles, unpack_fields
from jaxinfer.checkpoint.config_reader import ConfigReader
from jaxinfer.checkpoint.leaf_source import PackedForm, PackedMatrix, PackedRows
from jaxinfer.checkpoint.quant_formats.act_order import column_order
from jaxinfer.checkpoint.quant_formats.quant_format import (
    FLOATS,
    QuantFormat,
    check_stored,
    place_of,
    require,
    scale_dtype,
    whole_groups,
)
from jaxinfer.checkpoint.tensor_file import TensorInfo, TensorSource
from jaxinfer.errors import CheckpointError, UnsupportedError

_BITS = (2, 3, 4, 8)
_FORMATS = ("gptq", "gptq_v2")
_OVERRIDES = ("bits", "group_size", "desc_act", "sym")
# Keys of an override that say how a layer was made, not how it is stored.
_MAKING = ("damp_percent", "damp_auto_increment", "mse", "static_groups", "true_sequential")


@dataclass(frozen=True, slots=True, kw_only=True)
class GptqScheme:
    """How a layer is stored. stored_less_one: version 1 of the zero points."""

    bits: int
    group_size: int
    desc_act: bool
    stored_less_one: bool


class GptqFormat(QuantFormat):
    """The GPTQ matrices of a Hugging Face folder."""

    def __init__(self, config: ConfigReader, tensors: TensorSource) -> None:
        """Raises: UnsupportedError, CheckpointError: a config not read, or without sense."""
        self._tensors = tensors
        self._scheme = _scheme(config)
        self._overrides = _overrides(config, self._scheme)
        size = self._scheme.group_size
        self.summary = f"gptq {self._scheme.bits}-bit " + (
            "per channel" if size == -1 else f"group {size}"
        )

    def matrix(self, layer: str, shape: tuple[int, int]) -> PackedMatrix | None:
        scheme = self._scheme_of(layer)
        is_packed = f"{layer}.qweight" in self._tensors.infos
        if not is_packed and (scheme is None or f"{layer}.weight" in self._tensors.infos):
            return None
        return GptqMatrix(self._tensors, layer, shape, scheme or self._scheme)

    def _scheme_of(self, layer: str) -> GptqScheme | None:
        """The first override whose pattern begins the layer's name; None is "not quantized"."""
        for pattern, scheme in self._overrides:
            if pattern.match(layer):
                return scheme
        return self._scheme


class GptqMatrix(PackedMatrix):
    """One GPTQ layer."""

    def __init__(
        self, tensors: TensorSource, layer: str, shape: tuple[int, int], scheme: GptqScheme
    ) -> None:
        self.name, self.shape, self._tensors, self._scheme = layer, shape, tensors, scheme
        infos = require(tensors, layer, ("qweight", "qzeros", "scales"))
        if f"{layer}.g_idx" in tensors.infos:
            infos.append(tensors.infos[f"{layer}.g_idx"])
        self.file, self.num_bytes, self.tensors = place_of(tensors, infos)
        group, num_groups = whole_groups(shape[1], scheme.group_size)
        self._check(infos, num_groups)
        self._middle = 1 << (scheme.bits - 1)
        self._order = self._find_order(group)
        zeros = self._signed_zeros()
        self._zeros = zeros if zeros.any() else None
        self.form = PackedForm(
            shape=shape,
            codes="int8" if scheme.bits == 8 else "int4",
            group=group,
            scale_dtype=scale_dtype(infos[2]),
            addend="none" if self._zeros is None else "zeros",
            is_permuted=self._order is not None,
        )

    def _check(self, infos: list[TensorInfo], num_groups: int) -> None:
        (rows, columns), bits = self.shape, self._scheme.bits
        reason = f"{bits}-bit GPTQ of group_size {self._scheme.group_size}"
        check_stored(infos[0], (num_words(columns, bits), rows), ("I32",), reason)
        check_stored(infos[1], (num_groups, num_words(rows, bits)), ("I32",), reason)
        check_stored(infos[2], (num_groups, rows), FLOATS, reason)
        for info in infos[3:]:
            check_stored(info, (columns,), ("I32",), reason)

    def _find_order(self, group: int) -> np.ndarray | None:
        name = f"{self.name}.g_idx"
        if name in self._tensors.infos:
            return column_order(self._tensors.stored(name), group, name)
        if self._scheme.desc_act:
            raise CheckpointError(
                f"layer {self.name!r} in {self.file} has no g_idx, and desc_act is true: which "
                "column is in which group cannot be known; fetch the checkpoint again"
            )
        return None

    def _signed_zeros(self) -> np.ndarray:
        """[groups, out] i8, less the middle of the range. Version 1 adds its one field by field:
        a stored 15 of 4 bits is 0, and its neighbour stays what it is."""
        stored = self._tensors.stored(f"{self.name}.qzeros")
        fields = unpack_fields(stored, self._scheme.bits, 1)[:, : self.shape[0]]
        if self._scheme.stored_less_one:
            fields = (fields + np.uint8(1)) & np.uint8(2 * self._middle - 1)
        return (fields.astype(np.int16) - self._middle).astype(np.int8)

    def read_order(self) -> np.ndarray:
        assert self._order is not None
        return self._order

    def read_packed(self, start: int, stop: int) -> PackedRows:
        words = self._tensors.stored(f"{self.name}.qweight")[:, start:stop]
        fields = unpack_fields(words, self._scheme.bits, 0)[: self.shape[1]].T
        if self._order is not None:
            fields = fields[:, self._order]
        codes = (fields.astype(np.int16) - self._middle).astype(np.int8)
        scales = self._tensors.stored(f"{self.name}.scales")[:, start:stop]
        return PackedRows(
            codes=codes if self.form.codes == "int8" else pack_nibbles(codes),
            scales=scales.astype(self.form.scale_dtype, copy=False),
            addends=None if self._zeros is None else self._zeros[:, start:stop],
        )


def _scheme(config: ConfigReader) -> GptqScheme:
    version = config.get("checkpoint_format") or config.get("format") or "gptq"
    if version not in _FORMATS or config.get("is_marlin_format"):
        given = version if version not in _FORMATS else "marlin"
        raise UnsupportedError(
            f"{config.place}: checkpoint_format={given!r} is not read; known: {', '.join(_FORMATS)}"
        )
    if config.get("pack_dtype") not in (None, "int32"):
        raise UnsupportedError(
            f"{config.place}: pack_dtype={config['pack_dtype']!r} is not read; only int32 is"
        )
    scheme = GptqScheme(
        bits=config["bits"],
        group_size=config.get("group_size", 128),
        desc_act=bool(config.get("desc_act", False)),
        stored_less_one=version == "gptq",
    )
    return _checked(scheme, config.place)


def _checked(scheme: GptqScheme, place: str) -> GptqScheme:
    if scheme.bits not in _BITS:
        raise UnsupportedError(
            f"{place}: bits={scheme.bits!r} of GPTQ is not read; known: "
            f"{', '.join(map(str, _BITS))}"
        )
    size = scheme.group_size
    if type(size) is not int or not (size == -1 or size >= 1):
        raise CheckpointError(
            f"{place}: group_size={size!r} must be -1 (one group) or a positive integer; mend it"
        )
    return scheme


def _overrides(
    config: ConfigReader, base: GptqScheme
) -> list[tuple[re.Pattern[str], GptqScheme | None]]:
    """`dynamic`: pattern → changed keys; a pattern that begins with "-:" is not quantized."""
    entries = config.get("dynamic") or {}
    if not isinstance(entries, Mapping):
        raise CheckpointError(f"{config.place}: dynamic={entries!r} must be an object")
    return [_override(pattern, change, base, config.place) for pattern, change in entries.items()]


def _override(
    pattern: str, change: Any, base: GptqScheme, place: str
) -> tuple[re.Pattern[str], GptqScheme | None]:
    try:
        compiled = re.compile(pattern[2:] if pattern[:2] in ("+:", "-:") else pattern)
    except re.error as error:
        raise CheckpointError(f"{place}: dynamic pattern {pattern!r}: {error}; mend it") from error
    if pattern.startswith("-:"):
        return compiled, None
    change = change if isinstance(change, Mapping) else {}
    for key in change:
        if key not in (*_OVERRIDES, *_MAKING):
            raise UnsupportedError(
                f"{place}: dynamic {pattern!r} changes {key!r}, which is not read; known: "
                f"{', '.join(_OVERRIDES)}"
            )
    changed = {key: change[key] for key in _OVERRIDES[:3] if key in change}
    return compiled, _checked(replace(base, **changed), place)
