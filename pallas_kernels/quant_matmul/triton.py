"""`quant_matmul` in Triton, for GPUs before Hopper: codes are widened in registers.

A program is a tile of rows and outputs; a step of the loop lies inside one group of columns, so its
product is scaled once. Zero points are subtracted from codes, exactly; offsets multiply the sum of
a step's rows.
"""

# A kernel's body is in Triton's language, not typed as Python is; the package is optional.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from pallas_kernels.dispatch import Dtypes, Platform, Shapes, refuse
from pallas_kernels.triton_compat import why_not_triton

BLOCKS_IN = (128, 64, 32, 16)  # columns of a step, the best first; 16 is the least of a product
_CODE_DTYPES = (jnp.uint8, jnp.int8)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantTiles:
    """Sizes of the kernel. block_rows: of x, at least 16. block_out: outputs. stages: in flight."""

    block_rows: int = 16
    block_out: int = 64
    stages: int = 3


def why_not(shapes: Shapes, dtypes: Dtypes, platform: Platform, *, group: int) -> str | None:
    """Why this implementation cannot serve a call, or None. Names: x, codes."""
    return why_not_triton(platform) or _why_not_arrays(shapes, dtypes, group)


def _why_not_arrays(shapes: Shapes, dtypes: Dtypes, group: int) -> str | None:
    columns = shapes["x"][-1]
    if jnp.dtype(dtypes["x"]) != jnp.bfloat16:
        return f"x is {jnp.dtype(dtypes['x'])}; it takes bfloat16"
    if jnp.dtype(dtypes["codes"]) not in _CODE_DTYPES:
        return f"codes are {jnp.dtype(dtypes['codes'])}; it takes int8 and packed 4-bit ones"
    if not _block_in(columns, group):
        return f"the matrix has {columns} columns in groups of {group}; both must be 16 or more"
    return None


def _block_in(columns: int, group: int) -> int:
    """Columns of a step: a divisor of a group and of all columns, 0 where there is none."""
    whole = min(group, columns)
    fits = (block for block in BLOCKS_IN if whole % block == 0 and columns % block == 0)
    return next(fits, 0)


@triton.jit
def quant_matmul_kernel(
    x_ptr,
    codes_ptr,
    scales_ptr,
    addends_ptr,
    out_ptr,
    num_rows: tl.constexpr,
    outputs: tl.constexpr,
    columns: tl.constexpr,
    group: tl.constexpr,
    is_int4: tl.constexpr,
    addend: tl.constexpr,
    block_rows: tl.constexpr,
    block_out: tl.constexpr,
    block_in: tl.constexpr,
):
    """addend: 0 for none, 1 for zero points, 2 for offsets."""
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    out = tl.program_id(1) * block_out + tl.arange(0, block_out)
    has_row, has_out = row < num_rows, out < outputs
    total = tl.zeros((block_rows, block_out), tl.float32)
    for start in range(0, columns, block_in):
        column = start + tl.arange(0, block_in)
        x = tl.load(
            x_ptr + row[:, None] * columns + column[None, :], mask=has_row[:, None], other=0.0
        )
        if is_int4:
            pair = start // 2 + tl.arange(0, block_in // 2)
            places = codes_ptr + out[:, None] * (columns // 2) + pair[None, :]
            both = tl.load(places, mask=has_out[:, None], other=0).to(tl.int8, bitcast=True)
            codes = tl.interleave((both << 4) >> 4, both >> 4)
        else:
            places = codes_ptr + out[:, None] * columns + column[None, :]
            codes = tl.load(places, mask=has_out[:, None], other=0)
        place = (start // group) * outputs + out
        scale = tl.load(scales_ptr + place, mask=has_out, other=0.0).to(tl.float32)
        if addend == 1:
            zero = tl.load(addends_ptr + place, mask=has_out, other=0).to(tl.float32)
            matrix = (codes.to(tl.float32) - zero[:, None]).to(x.dtype)
        else:
            matrix = codes.to(tl.float32).to(x.dtype)
        product = tl.dot(x, tl.trans(matrix), out_dtype=tl.float32)
        total += product * scale[None, :]
        if addend == 2:
            offset = tl.load(addends_ptr + place, mask=has_out, other=0.0).to(tl.float32)
            lowest = 8.0 if is_int4 else 128.0
            sums = tl.sum(x.to(tl.float32), axis=1)
            total += sums[:, None] * (offset + lowest * scale)[None, :]
    places = out_ptr + row[:, None] * outputs + out[None, :]
    tl.store(places, total, mask=has_row[:, None] & has_out[None, :])


def launch_options(
    x_shape: tuple[int, int],
    codes: Any,
    group: int,
    addend: int,
    tiles: QuantTiles,
) -> dict[str, Any]:
    """The kernel's constants. codes: an array or its shape and dtype."""
    num_rows, columns = x_shape
    return {
        "num_rows": num_rows,
        "outputs": codes.shape[0],
        "columns": columns,
        "group": min(group, columns),
        "is_int4": str(codes.dtype) == "uint8",
        "addend": addend,
        "block_rows": tiles.block_rows,
        "block_out": tiles.block_out,
        "block_in": _block_in(columns, group),
    }


def default_tiles(num_rows: int, *, has_offsets: bool = False) -> QuantTiles:
    """More rows share a widened tile; the sums that offsets need would make 64 rows spill."""
    if num_rows <= 16:
        return QuantTiles()
    return QuantTiles(block_rows=32 if num_rows <= 32 or has_offsets else 64)


def quant_matmul(
    x: jax.Array,
    codes: jax.Array,
    scales: jax.Array,
    zeros: jax.Array | None = None,
    offsets: jax.Array | None = None,
    *,
    group: int,
    out_group: int = 1,
    tiles: QuantTiles | None = None,
) -> jax.Array:
    """See `reference.quant_matmul`; x is bfloat16, and codes less their zero points are exact."""
    from jax_triton import triton_call  # which needs a GPU build of jax

    shapes, dtypes = {"x": x.shape, "codes": codes.shape}, {"x": x.dtype, "codes": codes.dtype}
    refuse("quant_matmul", "triton", _why_not_arrays(shapes, dtypes, group))
    rows, outputs = x.reshape(-1, x.shape[-1]), codes.shape[0]
    if out_group > 1:
        scales = jnp.repeat(scales, out_group, axis=1)[:, :outputs]
    addend = 1 if zeros is not None else 2 if offsets is not None else 0
    addends = scales if addend == 0 else zeros if offsets is None else offsets
    tiles = tiles or default_tiles(rows.shape[0], has_offsets=addend == 2)
    out = triton_call(
        rows,
        codes,
        scales,
        addends,
        kernel=quant_matmul_kernel,
        out_shape=jax.ShapeDtypeStruct((rows.shape[0], outputs), jnp.float32),
        grid=(triton.cdiv(rows.shape[0], tiles.block_rows), triton.cdiv(outputs, tiles.block_out)),
        num_warps=4,
        num_stages=tiles.stages,
        **launch_options(rows.shape, codes, group, addend, tiles),
    )
    return out.reshape(*x.shape[:-1], outputs)
