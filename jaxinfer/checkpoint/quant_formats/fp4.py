"""HOST. 4-bit floats (e2m1) with small groups: NVFP4 and MXFP4 of compressed-tensors.

They do not fit codes times a scale, so they are decoded at load.
"""

import ml_dtypes
import numpy as np

from jaxinfer.checkpoint.leaf_source import FloatMatrix
from jaxinfer.checkpoint.quant_formats.quant_format import (
    check_stored,
    place_of,
    require,
    whole_groups,
)
from jaxinfer.checkpoint.tensor_file import TensorSource

_HALF = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
E2M1_VALUES = np.concatenate([_HALF, -_HALF])  # of the sixteen codes


class Fp4Matrix(FloatMatrix):
    """weight_packed [out, in/2] u8, low half first. NVFP4: value · scale / global scale, scales
    FP8. MXFP4: value · 2^(scale - 127), scales u8."""

    def __init__(
        self,
        tensors: TensorSource,
        layer: str,
        shape: tuple[int, int],
        group_size: int,
        is_nvfp4: bool,
    ) -> None:
        self.name, self.shape, self._tensors, self._is_nvfp4 = layer, shape, tensors, is_nvfp4
        needed = ["weight_packed", "weight_scale"] + ["weight_global_scale"] * is_nvfp4
        infos = require(tensors, layer, needed)
        (rows, columns), reason = shape, f"4-bit floats of group_size {group_size}"
        self._group, groups = whole_groups(columns, group_size)
        check_stored(infos[0], (rows, -(-columns // 2)), ("U8",), reason)
        kinds = ("F8_E4M3",) if is_nvfp4 else ("U8", "F8_E8M0")
        check_stored(infos[1], (rows, groups), kinds, reason)
        if is_nvfp4:
            check_stored(infos[2], (1,), ("F32",), reason)
        self.file, self.num_bytes, self.tensors = place_of(tensors, infos)

    def read_floats(self, start: int, stop: int) -> np.ndarray:
        packed = self._tensors.stored(f"{self.name}.weight_packed")[start:stop]
        codes = np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1)
        values = E2M1_VALUES[codes.reshape(len(packed), -1)[:, : self.shape[1]]]
        return (
            values * np.repeat(self._scales(start, stop), self._group, axis=1)[:, : self.shape[1]]
        )

    def _scales(self, start: int, stop: int) -> np.ndarray:
        stored = self._tensors.stored(f"{self.name}.weight_scale")[start:stop]
        if self._is_nvfp4:
            divisor = self._tensors.stored(f"{self.name}.weight_global_scale")
            return stored.astype(np.float32) / divisor
        return stored.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
