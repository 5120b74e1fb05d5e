"""HOST. Float matrices rounded to codes at load, row by row: int8, int4 and FP8, symmetric.

Scale of a group: its largest magnitude over the largest code (127, 7, 448). Knows no names of
layers: `storage` picks what is rounded.
"""

import ml_dtypes
import numpy as np

from jaxinfer.checkpoint.bit_fields import pack_nibbles
from jaxinfer.checkpoint.leaf_source import (
    CodeKind,
    LeafSource,
    PackedForm,
    PackedMatrix,
    PackedRows,
)

_LARGEST = {"int8": 127.0, "int4": 7.0, "fp8": 448.0}
# 4-bit groups are many: their scales take 16 bits, and codes are made for the scale as rounded.
_SCALE_DTYPES = {"int4": np.dtype(ml_dtypes.bfloat16)}


class RoundedMatrix(PackedMatrix):
    """A matrix that is rounded as it is read."""

    def __init__(self, source: LeafSource, codes: CodeKind, group: int) -> None:
        self.name, self.file, self.tensors = source.name, source.file, source.tensors
        self.shape, self.num_bytes, self._source = source.shape, source.num_bytes, source
        self.form = PackedForm(
            shape=(source.shape[0], source.shape[1]),
            codes=codes,
            group=group,
            scale_dtype=_SCALE_DTYPES.get(codes, np.dtype(np.float32)),
        )

    def read_packed(self, start: int, stop: int) -> PackedRows:
        return round_rows(self._source.read_floats(start, stop), self.form)


def round_rows(rows: np.ndarray, form: PackedForm) -> PackedRows:
    """[rows, in] f32 → codes and scales, ties to even. A group of zeros has scale 0.

    Example: 4 bits, group [7 -14 0 3]: scale 2, codes [4 -7 0 2] (3.5 and 1.5 go to even codes).
    """
    columns, group = form.shape[1], form.group
    padding = -columns % group
    groups = np.pad(rows, ((0, 0), (0, padding))).reshape(len(rows), -1, group)
    largest = np.maximum(groups.max(axis=2), -groups.min(axis=2))  # NaN goes through both
    scales = (largest / np.float32(_LARGEST[form.codes])).astype(form.scale_dtype)
    wide = scales.astype(np.float32)[..., None]
    quotients = np.divide(groups, wide, out=np.zeros_like(groups), where=wide != 0)
    quotients = quotients.reshape(len(rows), -1)[:, :columns]
    return PackedRows(codes=_codes(quotients, form.codes), scales=scales.T)


def _codes(quotients: np.ndarray, kind: CodeKind) -> np.ndarray:
    limit = _LARGEST[kind]
    clamped = np.clip(quotients, -limit, limit)
    if kind == "fp8":
        return clamped.astype(ml_dtypes.float8_e4m3fn)
    codes = np.rint(np.nan_to_num(clamped)).astype(np.int8)
    return pack_nibbles(codes) if kind == "int4" else codes
