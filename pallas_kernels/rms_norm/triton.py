"""`rms_norm` in Triton, for GPUs before Hopper: one program a row, all of it in registers."""

# A kernel's body is in Triton's language, not typed as Python is; the package is optional.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false

from typing import Any

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from pallas_kernels.dispatch import Dtypes, Platform, Shapes, refuse
from pallas_kernels.triton_compat import why_not_triton

MAX_COLUMNS = 16384


def why_not(shapes: Shapes, dtypes: Dtypes, platform: Platform) -> str | None:
    """Why this implementation cannot serve a call, or None. Names: x, weight."""
    return why_not_triton(platform) or _why_not_arrays(shapes, dtypes)


def _why_not_arrays(shapes: Shapes, dtypes: Dtypes) -> str | None:
    if shapes["x"][-1] > MAX_COLUMNS:
        return f"rows have {shapes['x'][-1]} values; it takes up to {MAX_COLUMNS}"
    if jnp.dtype(dtypes["x"]) not in (jnp.bfloat16, jnp.float32):
        return f"x is {jnp.dtype(dtypes['x'])}; it takes bfloat16 and float32"
    return None


@triton.jit
def rms_norm_kernel(
    x_ptr,
    weight_ptr,
    out_ptr,
    columns: tl.constexpr,
    eps: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, block)
    inside = column < columns
    x = tl.load(x_ptr + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0)
    mean_square = tl.sum(x * x, axis=0) / columns
    normed = x * (1.0 / tl.sqrt(mean_square + eps)) * weight
    tl.store(out_ptr + row * columns + column, normed.to(out_ptr.dtype.element_ty), mask=inside)


def launch_options(columns: int, eps: float) -> dict[str, Any]:
    """The kernel's constants for such rows."""
    return {"columns": columns, "eps": eps, "block": triton.next_power_of_2(columns)}


def rms_norm(x: jax.Array, weight: jax.Array, *, eps: float, tiles: None = None) -> jax.Array:
    """See `reference.rms_norm`. `tiles` is None: there is nothing to choose."""
    from jax_triton import triton_call  # which needs a GPU build of jax

    refuse("rms_norm", "triton", _why_not_arrays({"x": x.shape}, {"x": x.dtype}))
    columns = x.shape[-1]
    rows = x.reshape(-1, columns)
    out = triton_call(
        rows,
        weight.astype(jnp.float32),
        kernel=rms_norm_kernel,
        out_shape=jax.ShapeDtypeStruct(rows.shape, x.dtype),
        grid=(rows.shape[0],),
        num_warps=8 if columns > 2048 else 4,
        **launch_options(columns, eps),
    )
    return out.reshape(x.shape)
