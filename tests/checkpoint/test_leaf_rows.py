"""Rows of a matrix as a source of their own: packed where the packing allows it, else as floats."""

from pathlib import Path

import numpy as np
import pytest

from jaxinfer.checkpoint.leaf_rows import take_rows
from jaxinfer.checkpoint.leaf_source import LeafSource, PackedForm, PackedMatrix, PackedRows

ROWS, COLUMNS = 160, 8


class Blocks(PackedMatrix):
    """int8 codes that count up; refuses rows that do not begin at a block."""

    def __init__(self, out_group: int = 1) -> None:
        self.name, self.file, self.shape = "m", Path("m.bin"), (ROWS, COLUMNS)
        self.num_bytes, self.tensors = ROWS * COLUMNS, frozenset({"m"})
        self.codes = np.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS).astype(np.int8)
        scale = np.dtype(np.float32)
        self.form = PackedForm(
            shape=self.shape, codes="int8", group=COLUMNS, scale_dtype=scale, out_group=out_group
        )

    def read_packed(self, start: int, stop: int) -> PackedRows:
        assert start % 32 == 0 and start % self.form.out_group == 0
        blocks = -(-(stop - start) // self.form.out_group)
        return PackedRows(codes=self.codes[start:stop], scales=np.ones((1, blocks), np.float32))


def floats(source: LeafSource, step: int) -> np.ndarray:
    count = source.shape[0]
    parts = [source.read_floats(n, min(n + step, count)) for n in range(0, count, step)]
    return np.concatenate(parts)


@pytest.mark.parametrize("out_group", [1, 64])
@pytest.mark.parametrize(("first", "count"), [(0, 64), (64, 64), (64, 96), (5, 40), (96, 64)])
def test_any_rows(out_group: int, first: int, count: int) -> None:
    whole = Blocks(out_group)
    part = take_rows(whole, first, count)
    assert part.shape == (count, COLUMNS) and part.num_bytes == count * COLUMNS
    assert (part.name, part.tensors) == ("m", {"m"})
    wanted = whole.codes[first : first + count].astype(np.float32)
    np.testing.assert_array_equal(floats(part, 64), wanted)
    unit = max(32, out_group)
    stays_packed = first % unit == 0 and count % unit == 0
    assert isinstance(part, PackedMatrix) == stays_packed
    if isinstance(part, PackedMatrix):
        assert part.form.shape == part.shape
        np.testing.assert_array_equal(part.read_packed(0, count).codes, wanted.astype(np.int8))


def test_all_rows_are_the_source() -> None:
    whole = Blocks()
    assert take_rows(whole, 0, ROWS) is whole
