"""`rotate_write` on Mosaic GPU: one program a token and as many heads as fit, mostly all.

XLA makes three kernels or more of it: one for the queries, one for each array of pages. Here both
halves of the heads come by strided copies, are turned in registers, and go to where they belong.
Pages are written in place.
"""

import functools
import itertools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.dispatch import Dtypes, Platform, Shapes, refuse, why_not_hopper
from pallas_kernels.mosaic_compat import iota, load, update_in_place
from pallas_kernels.rotate_write.reference import HeadNorms

WGMMA = plgpu.Layout.WGMMA
MAX_HEADS = 64  # rows of the layout, q, k and v of a program together
MAX_COLUMNS = 64  # of both halves at once; more would spill
HEAD_STEP = 2  # a copy from shared memory begins at 128 bytes: two halves of 32 values
HEAD_DIMS = (64, 128, 256)
MAX_SHARED_BYTES = 160 * 1024  # for the parts of the heads


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heads:
    """Static sizes of one program. half: of a head, a copy's row. splits: programs of a token, each
    with its share of the query heads and of the kv heads."""

    num_heads: int
    num_kv_heads: int
    half: int
    splits: int
    num_parts: int
    eps: float | None
    interpret: bool

    @property
    def count(self) -> int:
        return self.num_heads + 2 * self.num_kv_heads

    @property
    def pieces(self) -> tuple[tuple[int, int], ...]:
        """Where queries, keys and values begin among all heads, and how many a program has."""
        q, kv = self.num_heads, self.num_kv_heads
        return (0, q), (self.splits * q, kv), (self.splits * (q + kv), kv)

    @property
    def block(self) -> int:
        """Columns that are in registers at once."""
        return min(self.half, MAX_COLUMNS)


def why_not(shapes: Shapes, dtypes: Dtypes, platform: Platform, *, num_heads: int) -> str | None:
    """Why this implementation cannot serve a call, or None. Names: cos, k_pages, v_pages."""
    return why_not_hopper(platform) or _why_not_arrays(shapes, dtypes, num_heads)


def _why_not_arrays(shapes: Shapes, dtypes: Dtypes, num_heads: int) -> str | None:
    _, num_kv_heads, _, head_dim = shapes["k_pages"]
    for name in ("k_pages", "v_pages"):
        if jnp.dtype(dtypes[name]) != jnp.bfloat16:
            return f"{name} are {jnp.dtype(dtypes[name])}; it takes bfloat16"
    if head_dim not in HEAD_DIMS:
        return f"heads have {head_dim} values; it takes {', '.join(map(str, HEAD_DIMS))}"
    if shapes["cos"][-1] != head_dim // 2:
        return f"{shapes['cos'][-1]} pairs of {head_dim} values are turned; it turns all"
    if not _splits(num_heads, num_kv_heads):
        return (
            f"there are {num_heads} and twice {num_kv_heads} heads; it takes multiples of "
            f"{HEAD_STEP}, {MAX_HEADS} together or in equal shares"
        )
    return None


def _splits(num_heads: int, num_kv_heads: int) -> int:
    """The fewest programs of a token whose shares fit; 0 where there are none.

    Example: 32 and twice 8 heads → 1; 64 and twice 8 → 2, each with 32 and twice 4.
    """
    for splits in range(1, num_kv_heads + 1):
        shares = (num_heads // splits, num_kv_heads // splits)
        are_whole = num_heads % splits == 0 and num_kv_heads % splits == 0
        are_even = all(share % HEAD_STEP == 0 for share in shares)
        if are_whole and are_even and shares[0] + 2 * shares[1] <= MAX_HEADS:
            return splits
    return 0


def rotate_write(
    parts: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    cos: jax.Array,
    sin: jax.Array,
    pages: jax.Array,
    offsets: jax.Array,
    norms: HeadNorms | None = None,
    *,
    num_heads: int,
    eps: float = 0.0,
    tiles: None = None,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """See `reference.rotate_write`. `tiles` is None: there is nothing to choose."""
    _check({"cos": cos, "k_pages": k_pages, "v_pages": v_pages}, num_heads)
    num_kv_heads, half = k_pages.shape[1], k_pages.shape[3] // 2
    count, splits = num_heads + 2 * num_kv_heads, _splits(num_heads, num_kv_heads)
    if 2 * half * 4 * _part_rows(parts.shape[0], count // splits) > MAX_SHARED_BYTES:
        parts = functools.reduce(jnp.add, list(parts))[None]
    heads = _Heads(
        num_heads=num_heads // splits,
        num_kv_heads=num_kv_heads // splits,
        half=half,
        splits=splits,
        num_parts=parts.shape[0],
        eps=None if norms is None else eps,
        interpret=interpret,
    )
    inputs = [parts.reshape(*parts.shape[:2], count, 2, half), pages, offsets, cos, sin]
    if norms is not None:
        inputs += [one.reshape(2, half) for one in (norms.q_scale, norms.k_scale)]
    halves = [array.reshape(*array.shape[:3], 2, half) for array in (k_pages, v_pages)]
    q, *written = _call(inputs, halves, heads)
    return (
        q.reshape(q.shape[0], num_heads, 2 * half),
        written[0].reshape(k_pages.shape),
        written[1].reshape(v_pages.shape),
    )


def _part_rows(num_parts: int, num_heads: int) -> int:
    """Rows of shared memory for parts one behind the other: a part is read with what follows it,
    up to the rows of the layout, and only its own heads are used."""
    return (num_parts - 1) * num_heads + MAX_HEADS


def _check(arrays: dict[str, jax.Array], num_heads: int) -> None:
    shapes = {name: array.shape for name, array in arrays.items()}
    dtypes = {name: array.dtype for name, array in arrays.items()}
    refuse("rotate_write", "mosaic", _why_not_arrays(shapes, dtypes, num_heads))


@functools.partial(jax.jit, static_argnums=2)
def _call(inputs: list[jax.Array], halves: list[jax.Array], heads: _Heads) -> list[jax.Array]:
    num_tokens, half = inputs[0].shape[1], heads.half
    angles = 2 if heads.eps is None else 6  # rows: cosines, sines, and the scales of both halves
    pieces = 1 if heads.splits == 1 else 3
    copies = 2 * heads.num_parts * pieces + (2 if heads.eps is None else 4)
    q, written = update_in_place(
        functools.partial(_kernel, num_inputs=len(inputs), heads=heads),
        inputs,
        halves,
        out_type=jax.ShapeDtypeStruct(
            (num_tokens, heads.splits * heads.num_heads, 2, half), jnp.bfloat16
        ),
        grid=(heads.splits, num_tokens),  # the last axis may have more than 65,535 programs
        grid_names=("split", "token"),
        scratch_types=[
            plgpu.SMEM((2, _part_rows(heads.num_parts, heads.count), half), jnp.float32),
            plgpu.SMEM((angles, half), jnp.float32),
            plgpu.SMEM((2, MAX_HEADS, half), jnp.bfloat16),
            plgpu.Barrier(num_arrivals=copies),
        ],
        compiler_params=plgpu.CompilerParams(reduction_scratch_bytes=0),
        kernel_name="rotate_write",
        interpret=heads.interpret,
    )
    return [q, *written]


def _kernel(*refs: Any, num_inputs: int, heads: _Heads) -> None:
    parts_gmem, pages_gmem, offsets_gmem, *angles_gmem = refs[:num_inputs]
    k_gmem, v_gmem, q_gmem, parts_smem, angles_smem, out_smem, ready = refs[num_inputs:]
    token, split = lax.axis_index("token"), lax.axis_index("split")
    for part, side in itertools.product(range(heads.num_parts), (0, 1)):
        target = part * heads.count
        for first, size in ((0, heads.count),) if heads.splits == 1 else heads.pieces:
            plgpu.copy_gmem_to_smem(
                parts_gmem.at[part, token, pl.ds(first + split * size, size), side],
                parts_smem.at[side, pl.ds(target, size)],
                ready,
            )
            target += size
    for row, angles in enumerate(angles_gmem[:2]):
        plgpu.copy_gmem_to_smem(angles.at[token], angles_smem.at[row], ready)
    for row, scales in enumerate(angles_gmem[2:]):
        plgpu.copy_gmem_to_smem(scales, angles_smem.at[pl.ds(2 + 2 * row, 2)], ready)
    plgpu.barrier_wait(ready)
    inverse = _inverse_norms(parts_smem, heads)
    for first in range(0, heads.half, heads.block):
        columns = pl.ds(first, heads.block)
        for side, values in enumerate(_turned(parts_smem, angles_smem, inverse, columns, heads)):
            out_smem[side, :, columns] = values.astype(jnp.bfloat16)
    plgpu.commit_smem()
    page, offset = pages_gmem[token], offsets_gmem[token]
    q_count, kv_count = heads.num_heads, heads.num_kv_heads
    q_heads, kv_heads = (pl.ds(split * size, size) for size in (q_count, kv_count))
    for side in (0, 1):
        queries = out_smem.at[side, pl.ds(0, q_count)]
        keys = out_smem.at[side, pl.ds(q_count, kv_count)]
        values = out_smem.at[side, pl.ds(q_count + kv_count, kv_count)]
        plgpu.copy_smem_to_gmem(queries, q_gmem.at[token, q_heads, side])
        plgpu.copy_smem_to_gmem(keys, k_gmem.at[page, kv_heads, offset, side])
        plgpu.copy_smem_to_gmem(values, v_gmem.at[page, kv_heads, offset, side])
    plgpu.wait_smem_to_gmem(0)


def _sum_of_parts(parts_smem: Any, side: int, columns: Any, heads: _Heads) -> jax.Array:
    """[64, block] f32: some columns of one half of every head."""

    def read(part: int) -> jax.Array:
        place = parts_smem.at[side, pl.ds(part * heads.count, MAX_HEADS), columns]
        return load(place, WGMMA, heads.interpret, optimized=False)

    return functools.reduce(jnp.add, map(read, range(heads.num_parts)))


def _inverse_norms(parts_smem: Any, heads: _Heads) -> jax.Array | None:
    """[64] f32, what every head is multiplied by to be normed; None where none is."""
    if heads.eps is None:
        return None
    squares: Any = jnp.float32(0)
    for first in range(0, heads.half, heads.block):
        for side in (0, 1):
            values = _sum_of_parts(parts_smem, side, pl.ds(first, heads.block), heads)
            squares = jnp.sum(values * values, axis=1) + squares
    return lax.rsqrt(squares / jnp.float32(2 * heads.half) + jnp.float32(heads.eps))


def _turned(
    parts_smem: Any, angles_smem: Any, inverse: jax.Array | None, columns: Any, heads: _Heads
) -> tuple[jax.Array, jax.Array]:
    """Some columns of both halves of every head, [64, block] f32 each: queries and keys rotated,
    values as they are."""
    shape = (MAX_HEADS, heads.block)
    head = iota(shape, 0, WGMMA, heads.interpret)

    def angles(row: int) -> jax.Array:
        place = angles_smem.at[row, columns]
        values = load(place, WGMMA.reduce(0), heads.interpret, optimized=False)
        return lax.broadcast_in_dim(values, shape, [1])

    left, right = (_sum_of_parts(parts_smem, side, columns, heads) for side in (0, 1))
    turns = head < heads.num_heads + heads.num_kv_heads
    normed_left, normed_right = left, right
    if inverse is not None:
        factor, is_query = lax.broadcast_in_dim(inverse, shape, [0]), head < heads.num_heads
        normed_left = left * factor * jnp.where(is_query, angles(2), angles(4))
        normed_right = right * factor * jnp.where(is_query, angles(3), angles(5))
    cos, sin = angles(0), angles(1)
    return (
        jnp.where(turns, normed_left * cos - normed_right * sin, left),
        jnp.where(turns, normed_right * cos + normed_left * sin, right),
    )
