"""HOST. Experts as 4-bit floats (e2m1) with a power of two for 32 of them: gpt-oss's MXFP4.

All experts of a layer lie in one tensor of blocks and one of scales. Twice an e2m1 is a whole
number up to 12, so they are kept as 8-bit codes under half their scales, and nothing is lost.
"""

import ml_dtypes
import numpy as np

from jaxinfer.checkpoint.config_reader import ConfigReader
from jaxinfer.checkpoint.leaf_source import PackedForm, PackedMatrix, PackedRows
from jaxinfer.checkpoint.quant_formats.fp4 import E2M1_VALUES
from jaxinfer.checkpoint.quant_formats.quant_format import QuantFormat, check_stored, place_of
from jaxinfer.checkpoint.tensor_file import TensorSource
from jaxinfer.errors import CheckpointError

GROUP = 32
DOUBLED = (2 * E2M1_VALUES).astype(np.int8)  # by code


class Mxfp4Format(QuantFormat):
    """The MXFP4 experts of a Hugging Face folder."""

    def __init__(self, config: ConfigReader, tensors: TensorSource) -> None:
        self._tensors = tensors
        self.summary = f"mxfp4 group {GROUP}"

    def matrix(self, layer: str, shape: tuple[int, int]) -> PackedMatrix | None:
        return None  # only experts are packed, all of a layer in one tensor

    def row_range(
        self, layer: str, first: int, shape: tuple[int, int], step: int = 1
    ) -> PackedMatrix | None:
        if f"{layer}_blocks" not in self._tensors.infos:
            return None
        return Mxfp4Rows(self._tensors, layer, first, shape, step)


class Mxfp4Rows(PackedMatrix):
    """Rows of `_blocks` [experts, rows, in/32, 16] u8, low half first, and of `_scales` [experts,
    rows, in/32] u8: value · 2^(scale - 127)."""

    def __init__(
        self, tensors: TensorSource, layer: str, first: int, shape: tuple[int, int], step: int
    ) -> None:
        self.name, self.shape, self._tensors = layer, shape, tensors
        names = f"{layer}_blocks", f"{layer}_scales"
        if names[1] not in tensors.infos:
            raise CheckpointError(
                f"{tensors.files[0].parent} lacks {names[1]!r}, without which {names[0]!r} means "
                "nothing; fetch the checkpoint again"
            )
        infos = [tensors.infos[name] for name in names]
        groups, stored = -(-shape[1] // GROUP), infos[1].shape
        rows = shape[0] * step
        num_experts = stored[0] if stored else 0
        reason = f"MXFP4 of {num_experts} experts of [{rows}, {shape[1]}]"
        check_stored(infos[0], (num_experts, rows, groups, GROUP // 2), ("U8",), reason)
        check_stored(infos[1], (num_experts, rows, groups), ("U8", "F8_E8M0"), reason)
        if first >= num_experts * rows:
            raise CheckpointError(
                f"tensor {names[0]!r} in {infos[0].file} holds {num_experts} experts, the config "
                f"asks for expert {first // rows}; config and weights are not of the same model"
            )
        self.file, _, self.tensors = place_of(tensors, infos)
        self.num_bytes = shape[0] * groups * (GROUP // 2 + 1)
        self._names, self._first, self._step = names, first, step
        self.form = PackedForm(
            shape=shape, codes="int8", group=GROUP, scale_dtype=np.dtype(ml_dtypes.bfloat16)
        )

    def read_packed(self, start: int, stop: int) -> PackedRows:
        blocks, scales = (self._rows(name, start, stop) for name in self._names)
        halves = np.stack([blocks & np.uint8(15), blocks >> np.uint8(4)], axis=-1)
        codes = DOUBLED[halves.reshape(stop - start, -1)[:, : self.shape[1]]]
        return PackedRows(codes=codes, scales=half_scales(scales).T)

    def _rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """Bytes of rows `start` to `stop`: [rows, bytes]."""
        stored = self._tensors.stored(name)
        first, last = (self._first + self._step * place for place in (start, stop - 1))
        by_row = stored.reshape(stored.shape[0] * stored.shape[1], -1)
        return by_row[first : last + 1 : self._step].view(np.uint8)


def half_scales(exponents: np.ndarray) -> np.ndarray:
    """2^(exponent - 128), bfloat16; NaN for 255, which means that."""
    scales = exponents.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    return (scales * np.float32(0.5)).astype(ml_dtypes.bfloat16)
