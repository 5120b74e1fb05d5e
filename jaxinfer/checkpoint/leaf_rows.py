"""HOST. Rows of a stored tensor or matrix that fill a leaf of their own: fused projections, split.

A packed matrix stays packed where its packing allows a cut there. Knows no names and no formats.
"""

import math
from dataclasses import replace

import numpy as np

from jaxinfer.checkpoint.leaf_source import (
    ROW_STEP,
    FloatMatrix,
    LeafSource,
    PackedMatrix,
    PackedRows,
)


def take_rows(source: LeafSource, first: int, count: int) -> LeafSource:
    """The `count` rows of `source` from `first` on, as a source; `source` itself if that is all."""
    if count == source.shape[0]:
        return source
    if isinstance(source, PackedMatrix) and not (first % _unit(source) or count % _unit(source)):
        return _PackedPart(source, first, count)
    return _FloatPart(source, first, count)


def _unit(source: LeafSource) -> int:
    """Rows that a block of the source begins at a multiple of."""
    if isinstance(source, PackedMatrix):
        return math.lcm(ROW_STEP, source.form.out_group)
    return ROW_STEP if isinstance(source, FloatMatrix) else 1


class _FloatPart(FloatMatrix):
    """Rows that are read as floats, from whole blocks of the source."""

    def __init__(self, source: LeafSource, first: int, count: int) -> None:
        self.name, self.file, self.tensors = source.name, source.file, source.tensors
        self.shape = (count, *source.shape[1:])
        self.num_bytes = source.num_bytes * count // source.shape[0]
        self._source, self._first = source, first

    def read_floats(self, start: int, stop: int) -> np.ndarray:
        unit, begin, end = _unit(self._source), self._first + start, self._first + stop
        lead, whole = begin % unit, min(-(-end // unit) * unit, self._source.shape[0])
        return self._source.read_floats(begin - lead, whole)[lead : lead + stop - start]


class _PackedPart(PackedMatrix):
    """Rows that stay packed: they begin and end where blocks of the source do."""

    def __init__(self, source: PackedMatrix, first: int, count: int) -> None:
        self.name, self.file, self.tensors = source.name, source.file, source.tensors
        self.shape = (count, *source.shape[1:])
        self.num_bytes = source.num_bytes * count // source.shape[0]
        self.form = replace(source.form, shape=(count, source.form.shape[1]))
        self._source, self._first = source, first

    def read_packed(self, start: int, stop: int) -> PackedRows:
        return self._source.read_packed(self._first + start, self._first + stop)

    def read_order(self) -> np.ndarray:
        return self._source.read_order()
