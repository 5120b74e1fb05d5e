"""Tile sizes of the `mosaic` implementation: what may be chosen, and what is chosen by default.

Defaults are data (`tiles.json` beside this file), by the number of rows. Knows sizes, not the
kernel.
"""

import functools
import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources

BLOCK_OUT = 64  # outputs of one warpgroup: the rows of one wgmma
BLOCK_IN = (128, 64)  # columns of one step of the pipeline, the best first
PLAIN_BLOCK_IN = 64  # of a step of bfloat16 matrices: two programs fit on a multiprocessor
MIN_GROUP = 16  # columns of one wgmma
MIN_ADDEND_ROWS = 32  # of a tile, with zeros or offsets: a copy of 32 sums is 128 bytes, the least
ROW_CHOICES = (16, 32, 64, 128)
# Enough programs to keep every multiprocessor of a large GPU busy; beyond, splits only cost.
_MIN_PROGRAMS = 128
_MIN_SPLIT_COLUMNS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantTiles:
    """Sizes of the kernel.

    warpgroups: of a program, 64 outputs each; 1 or 2.
    block_rows: rows of x in a program; 16, 32, 64 or 128.
    stages: steps in flight, at least 2.
    """

    warpgroups: int
    block_rows: int
    stages: int

    def __post_init__(self) -> None:
        if self.warpgroups not in (1, 2):
            raise ValueError(f"warpgroups={self.warpgroups} must be 1 or 2")
        if self.block_rows not in ROW_CHOICES:
            raise ValueError(f"block_rows={self.block_rows} must be one of {ROW_CHOICES}")
        if self.stages < 2:
            raise ValueError(f"stages={self.stages} must be at least 2: one is filled meanwhile")

    def shared_bytes(
        self, code_bits: int, block_in: int = BLOCK_IN[0], *, row_bits: int = 16
    ) -> int:
        """Shared memory of one program: codes and x of every stage, and the result. Scales and
        barriers are left out."""
        codes = self.warpgroups * BLOCK_OUT * block_in * code_bits // 8
        rows = self.block_rows * block_in * row_bits // 8
        return self.stages * (codes + rows) + self.warpgroups * BLOCK_OUT * self.block_rows * 4


def num_splits(columns: int, outputs: int, num_rows: int, tiles: QuantTiles) -> int:
    """Programs that share the columns of the same outputs: from shapes alone, and the same for any
    number of rows that fit in one tile.

    Example: 4096 x 4096 with 2 warpgroups: 32 programs without splits, so 4 splits of 1024 columns;
    a matrix of 16384 outputs has enough with 1, and so have 512 rows in 4 tiles.
    """
    programs = -(-outputs // (tiles.warpgroups * BLOCK_OUT)) * -(-num_rows // tiles.block_rows)
    most = max(1, columns // _MIN_SPLIT_COLUMNS)
    return min(-(-_MIN_PROGRAMS // programs), most)


def quant_tiles(num_rows: int, *, group: int = 128, has_addend: bool = False) -> QuantTiles:
    """The default sizes for that many rows of x in groups of that many columns.

    has_addend: zeros or offsets beside the codes.
    """
    sizes = row_choices(group, has_addend)
    block_rows = next((size for size in sizes if num_rows <= size), sizes[-1])
    return QuantTiles(block_rows=block_rows, **_defaults()["codes"][str(block_rows)])


def plain_tiles(num_rows: int) -> QuantTiles:
    """The default sizes for that many rows of x and a bfloat16 matrix."""
    block_rows = next((size for size in ROW_CHOICES if num_rows <= size), ROW_CHOICES[-1])
    return QuantTiles(block_rows=block_rows, **_defaults()["bfloat16"][str(block_rows)])


def coded_tiles(num_rows: int) -> QuantTiles:
    """The default sizes for that many rows of codes and a matrix of codes."""
    defaults = _defaults()["codes by codes"]
    sizes = sorted(map(int, defaults))
    block_rows = next((size for size in sizes if num_rows <= size), sizes[-1])
    return QuantTiles(block_rows=block_rows, **defaults[str(block_rows)])


def row_choices(group: int, has_addend: bool) -> tuple[int, ...]:
    """Rows of a tile that the registers of a warpgroup and the least copy allow."""
    most = 64 if has_addend or group < 64 else 128
    least = MIN_ADDEND_ROWS if has_addend else 0
    return tuple(size for size in ROW_CHOICES if least <= size <= most)


def filled_rows(num_rows: int) -> int:
    """Rows of all tiles together that so many rows of x take.

    Example: 5 → 16; 20 → 32; 64 → 64; 130 → 256.
    """
    size = next((size for size in ROW_CHOICES if num_rows <= size), ROW_CHOICES[-1])
    return -(-num_rows // size) * size


def tile_choices(
    code_bits: int, shared_bytes: int, *, has_addend: bool = False
) -> list[QuantTiles]:
    """Every choice worth a measurement that fits into the shared memory of a program."""
    choices = _choices(row_choices(128, has_addend), (3, 4, 6))
    # 8 KiB are room for scales and barriers.
    return [one for one in choices if one.shared_bytes(code_bits) + 8192 <= shared_bytes]


def plain_choices(shared_bytes: int) -> list[QuantTiles]:
    """Every choice for bfloat16 matrices that fits into the shared memory of a program."""
    choices = _choices(ROW_CHOICES, (3, 4, 5))
    return [one for one in choices if one.shared_bytes(16, PLAIN_BLOCK_IN) + 1024 <= shared_bytes]


def coded_choices(shared_bytes: int) -> list[QuantTiles]:
    """Every choice for products of codes with codes that fits into the shared memory of a program.

    A scale a row is copied beside the codes: so many rows as for zeros at least.
    """
    choices = _choices([rows for rows in ROW_CHOICES if rows >= MIN_ADDEND_ROWS], (3, 4, 6))
    return [one for one in choices if one.shared_bytes(8, row_bits=8) + 8192 <= shared_bytes]


def _choices(rows: Iterable[int], stages: Iterable[int]) -> list[QuantTiles]:
    return [
        QuantTiles(warpgroups=warpgroups, block_rows=size, stages=count)
        for size, warpgroups, count in itertools.product(rows, (1, 2), stages)
    ]


@functools.cache
def _defaults() -> dict[str, dict[str, dict[str, int]]]:
    folder = resources.files("pallas_kernels.quant_matmul")
    return json.loads(folder.joinpath("tiles.json").read_text("utf-8"))
