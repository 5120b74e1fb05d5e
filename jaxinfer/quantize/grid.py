"""HOST. The grid that a float matrix is rounded to: a scale, and perhaps a zero point, a group.

Element = (code - zero) · scale, codes signed. Scales are what the file will hold: they are rounded
to its dtype before any code is made. Knows matrices, no layers and no files.
"""

from dataclasses import dataclass

import numpy as np

# A symmetric range reaches from -8 to 7 (4 bits): with 7.5 in the place of 7 both ends lose half a
# step, and all other values have finer ones. It is compressed-tensors' own rule.
_HALF_STEP = 0.5
SHRINKS = tuple(np.float32(1 - step / 20) for step in range(11))  # 1, 0.95, …, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How one matrix is rounded. group: columns under one scale, a divisor of the width.
    scale_dtype: what scales are stored in."""

    bits: int
    group: int
    symmetric: bool
    scale_dtype: np.dtype

    @property
    def lowest(self) -> int:
        """The least code."""
        return -(1 << (self.bits - 1))

    @property
    def highest(self) -> int:
        """The largest code."""
        return (1 << (self.bits - 1)) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """scales: [out, groups] f32, values that the scheme's dtype holds, none of them 0.
    zeros: [out, groups] f32, whole numbers among the codes; 0 where the scheme is symmetric."""

    scheme: Scheme
    scales: np.ndarray
    zeros: np.ndarray

    def columns(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """[n, out] – scale and zero point of each of these columns."""
        groups = indices // self.scheme.group
        return self.scales.T[groups], self.zeros.T[groups]


@dataclass(frozen=True, slots=True, kw_only=True)
class CodedMatrix:
    """codes: [out, in] i8, on a grid."""

    grid: Grid
    codes: np.ndarray

    def floats(self) -> np.ndarray:
        """[out, in] f32 – what the codes mean."""
        groups = _grouped(self.codes.astype(np.float32), self.grid.scheme)
        values = (groups - self.grid.zeros[..., None]) * self.grid.scales[..., None]
        return values.reshape(self.codes.shape)


def make_grid(
    weights: np.ndarray, scheme: Scheme, shrink: np.ndarray | np.float32 = SHRINKS[0]
) -> Grid:
    """The grid that spans each group's range, or a part of it.

    Example: 4 bits, symmetric, group [3 -7.5 0 1]: scale 1, codes [3 -8 0 1]. Asymmetric, group
    [0 15]: scale 1, zero -8, codes [-8 7].

    Args:
        weights: [out, in] f32.
        shrink: what part of the range is spanned, for all or [out, groups].
    """
    groups = _grouped(weights, scheme)
    high, low = groups.max(axis=2), groups.min(axis=2)
    steps = np.float32((1 << scheme.bits) - 1)
    if scheme.symmetric:
        scales = np.maximum(high, -low) * (shrink / np.float32(steps * _HALF_STEP))
    else:
        high, low = np.maximum(high, 0) * shrink, np.minimum(low, 0) * shrink
        scales = (high - low) / steps
    # A group of zeros, or of less than its dtype holds, has codes of 0 under any scale.
    scales = scales.astype(scheme.scale_dtype).astype(np.float32)
    scales = np.where(scales > 0, scales, np.float32(1))
    zeros = np.zeros_like(scales)
    if not scheme.symmetric:
        zeros = np.clip(np.rint(scheme.lowest - low / scales), scheme.lowest, scheme.highest)
    return Grid(scheme=scheme, scales=scales, zeros=zeros.astype(np.float32))


def round_to_grid(weights: np.ndarray, grid: Grid) -> CodedMatrix:
    """The nearest code of every element; ties go to the even one."""
    scheme = grid.scheme
    codes = _grouped(weights, scheme) / grid.scales[..., None]
    np.rint(codes, out=codes)
    codes += grid.zeros[..., None]
    np.clip(codes, scheme.lowest, scheme.highest, out=codes)
    return CodedMatrix(grid=grid, codes=codes.astype(np.int8).reshape(weights.shape))


def search_grid(weights: np.ndarray, scheme: Scheme, gram: np.ndarray) -> Grid:
    """The grid whose groups span the part of their range that costs the least output error.

    Source: Lin et al. 2023, "AWQ", clipping: a range shrunk by up to half in steps of 5 %; each
    group for itself, as if the others were exact.

    Args:
        gram: [in, in] – inputs times inputs, summed over tokens; only the groups' blocks count.
    """
    blocks = diagonal_blocks(gram, scheme.group)
    best = make_grid(weights, scheme)
    least = _group_errors(weights, best, blocks)
    shrink = np.ones_like(best.scales)
    for candidate in SHRINKS[1:]:
        errors = _group_errors(weights, make_grid(weights, scheme, candidate), blocks)
        shrink = np.where(errors < least, candidate, shrink)
        least = np.minimum(errors, least)
    return make_grid(weights, scheme, shrink)


def diagonal_blocks(gram: np.ndarray, group: int) -> np.ndarray:
    """[groups, group, group] f32 – what inputs of one group have to do with each other."""
    count = len(gram) // group
    blocks = [gram[g * group : (g + 1) * group, g * group : (g + 1) * group] for g in range(count)]
    return np.stack(blocks).astype(np.float32)


def _group_errors(weights: np.ndarray, grid: Grid, blocks: np.ndarray) -> np.ndarray:
    """[out, groups] – squared output error that each group makes."""
    errors = _grouped(round_to_grid(weights, grid).floats() - weights, grid.scheme)
    by_group = errors.swapaxes(0, 1)  # [groups, out, group]
    return np.einsum("goi,goi->og", by_group @ blocks, by_group)


def _grouped(values: np.ndarray, scheme: Scheme) -> np.ndarray:
    """[out, in] → [out, groups, group]."""
    return values.reshape(len(values), -1, scheme.group)
