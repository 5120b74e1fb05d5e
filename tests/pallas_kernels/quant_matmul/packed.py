"""Random packed matrices of every form, and what they mean, written from the definition."""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(frozen=True, kw_only=True)
class Case:
    """A packed matrix: the op's arrays, its options, and the float32 matrix that it stands for."""

    name: str
    codes: np.ndarray
    scales: np.ndarray
    addends: dict[str, np.ndarray]
    options: dict[str, int]
    matrix: np.ndarray

    def arguments(self) -> dict[str, Any]:
        return {"codes": self.codes, "scales": self.scales, **self.addends, **self.options}


def pack_nibbles(codes: np.ndarray) -> np.ndarray:
    """[out, in] signed 4-bit codes → [out, ceil(in/2)] bytes, the even column in the low half."""
    even = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2))).astype(np.int64) & 15
    return (even[:, ::2] | even[:, 1::2] << 4).astype(np.uint8)


def make_case(
    kind: str,
    *,
    addend: str = "none",
    shape: tuple[int, int] = (24, 96),
    group: int = 32,
    out_group: int = 1,
    scale_dtype: Any = np.float32,
    seed: int = 0,
) -> Case:
    """kind: "int4", "int8" or "fp8"; addend: "none", "zeros" or "offsets"."""
    random, (rows, columns) = np.random.default_rng(seed), shape
    low, high = {"int4": (-8, 8), "int8": (-128, 128), "fp8": (0, 1)}[kind]
    plain = random.integers(low, high, shape)
    if kind == "fp8":
        plain = random.normal(0, 100, shape).clip(-448, 448).astype(ml_dtypes.float8_e4m3fn)
    groups, blocks = -(-columns // group), -(-rows // out_group)
    scales = random.uniform(0.01, 0.1, (groups, blocks)).astype(scale_dtype)
    addends = {}
    if addend == "zeros":
        addends["zeros"] = random.integers(low, high, (groups, rows)).astype(np.int8)
    if addend == "offsets":
        addends["offsets"] = random.normal(0, 1, (groups, rows)).astype(scale_dtype)
    matrix = np.empty(shape, np.float32)
    for row in range(rows):
        for column in range(columns):
            place = column // group
            scale = np.float32(scales[place, row // out_group])
            code = np.float32(plain[row, column])
            if addend == "zeros":
                code -= np.float32(addends["zeros"][place, row])
            if addend == "offsets":
                code -= np.float32(low)
            matrix[row, column] = code * scale
            if addend == "offsets":
                matrix[row, column] += np.float32(addends["offsets"][place, row])
    stored = {"int4": pack_nibbles, "int8": lambda c: c.astype(np.int8), "fp8": lambda c: c}[kind]
    name = f"{kind}-{addend}-{rows}x{columns}-g{group}x{out_group}-{np.dtype(scale_dtype).name}"
    options = {"group": group, "out_group": out_group}
    return Case(
        name=name,
        codes=stored(plain),
        scales=scales,
        addends=addends,
        options=options,
        matrix=matrix,
    )


CASES = [
    make_case("int4"),
    make_case("int4", addend="zeros", scale_dtype=np.float16),
    make_case("int4", addend="offsets"),
    make_case("int4", addend="offsets", scale_dtype=np.float16),
    make_case("int4", group=96),
    make_case("int4", group=64, addend="zeros"),  # the last group has 32 columns
    make_case("int4", shape=(5, 33), group=16, addend="offsets"),  # half a byte is padding
    make_case("int8", scale_dtype=ml_dtypes.bfloat16),
    make_case("int8", addend="zeros", group=96),
    make_case("int8", addend="offsets", group=16),
    make_case("fp8", group=96),
    make_case("fp8", group=32, out_group=16),  # 24 rows: the last block has 8
    make_case("fp8", shape=(20, 80), group=32, out_group=16, scale_dtype=ml_dtypes.bfloat16),
]
