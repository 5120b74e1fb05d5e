"""HOST. AWQ checkpoints of the GEMM version: 4 bits, packed along the outputs in its own order.

qweight [in, out/8] and qzeros [groups, out/8]: half-byte k of word c is output 8c + [0 2 4 6 1 3 5
7][k]. No zero point is stored less one. Other versions are refused by name.
"""

import numpy as np

from jaxinfer.checkpoint.bit_fields import num_words, pack_nibbles, unpack_fields
from jaxinfer.checkpoint.config_reader import ConfigReader
from jaxinfer.checkpoint.leaf_source import PackedForm, PackedMatrix, PackedRows
from jaxinfer.checkpoint.quant_formats.quant_format import (
    FLOATS,
    QuantFormat,
    check_stored,
    place_of,
    require,
    scale_dtype,
    whole_groups,
)
from jaxinfer.checkpoint.tensor_file import TensorSource
from jaxinfer.errors import CheckpointError, UnsupportedError

_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # of outputs 8c … 8c+7 among the half-bytes of a word
_MIDDLE = 8


class AwqFormat(QuantFormat):
    """The AWQ matrices of a Hugging Face folder."""

    def __init__(self, config: ConfigReader, tensors: TensorSource) -> None:
        """Raises: UnsupportedError, CheckpointError: a config not read, or without sense."""
        for key in ("version", "checkpoint_format", "format"):
            if str(config.get(key) or "gemm").lower() != "gemm":
                raise UnsupportedError(
                    f"{config.place}: AWQ {key}={config[key]!r} is not read: it packs otherwise; "
                    "known: gemm"
                )
        bits = config.get("bits", config.get("w_bit"))
        if bits != 4:
            raise UnsupportedError(f"{config.place}: bits={bits!r} of AWQ is not read; known: 4")
        if config.get("dynamic"):
            raise UnsupportedError(f"{config.place}: dynamic overrides of AWQ are not read")
        size = config.get("group_size", config.get("q_group_size", 128))
        if type(size) is not int or not (size == -1 or size >= 1):
            raise CheckpointError(
                f"{config.place}: group_size={size!r} must be -1 (one group) or a positive "
                "integer; mend it"
            )
        self._tensors, self._group_size = tensors, size
        self.summary = f"awq 4-bit group {size}"

    def matrix(self, layer: str, shape: tuple[int, int]) -> PackedMatrix | None:
        infos = self._tensors.infos
        if f"{layer}.qweight" not in infos and f"{layer}.weight" in infos:
            return None
        return AwqMatrix(self._tensors, layer, shape, self._group_size)


class AwqMatrix(PackedMatrix):
    """One AWQ layer."""

    def __init__(
        self, tensors: TensorSource, layer: str, shape: tuple[int, int], group_size: int
    ) -> None:
        self.name, self.shape, self._tensors = layer, shape, tensors
        infos = require(tensors, layer, ("qweight", "qzeros", "scales"))
        self.file, self.num_bytes, self.tensors = place_of(tensors, infos)
        (rows, columns), reason = shape, f"4-bit AWQ of group_size {group_size}"
        group, num_groups = whole_groups(columns, group_size)
        check_stored(infos[0], (columns, num_words(rows, 4)), ("I32",), reason)
        check_stored(infos[1], (num_groups, num_words(rows, 4)), ("I32",), reason)
        check_stored(infos[2], (num_groups, rows), FLOATS, reason)
        zeros = _signed_codes(tensors.stored(f"{layer}.qzeros"))[:, :rows]
        self._zeros = zeros if zeros.any() else None
        self.form = PackedForm(
            shape=shape,
            codes="int4",
            group=group,
            scale_dtype=scale_dtype(infos[2]),
            addend="none" if self._zeros is None else "zeros",
        )

    def read_packed(self, start: int, stop: int) -> PackedRows:
        words = self._tensors.stored(f"{self.name}.qweight")[:, start // 8 : num_words(stop, 4)]
        scales = self._tensors.stored(f"{self.name}.scales")[:, start:stop]
        return PackedRows(
            codes=pack_nibbles(_signed_codes(words)[:, : stop - start].T),
            scales=scales.astype(self.form.scale_dtype, copy=False),
            addends=None if self._zeros is None else self._zeros[:, start:stop],
        )


def _signed_codes(words: np.ndarray) -> np.ndarray:
    """[n, out/8] words → [n, out] codes less 8, i8, outputs in order."""
    fields = unpack_fields(words, 4, 1).reshape(len(words), -1, 8)[..., _PLACES]
    return fields.reshape(len(words), -1).astype(np.int8) - np.int8(_MIDDLE)
