"""`rms_norm` on Mosaic GPU: one warpgroup a row, the row in registers between its two uses."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.dispatch import Dtypes, Platform, Shapes, refuse, why_not_hopper
from pallas_kernels.mosaic_compat import load, simulation

THREADS = 128  # of a warpgroup
MAX_VECTOR = 8  # values that a thread loads at once
MAX_COLUMNS = 8192  # 64 values a thread; more would spill


def why_not(shapes: Shapes, dtypes: Dtypes, platform: Platform) -> str | None:
    """Why this implementation cannot serve a call, or None. Names: x, weight."""
    return why_not_hopper(platform) or _why_not_arrays(shapes, dtypes)


def _why_not_arrays(shapes: Shapes, dtypes: Dtypes) -> str | None:
    columns = shapes["x"][-1]
    if columns % THREADS or columns > MAX_COLUMNS:
        return f"rows have {columns} values; it takes multiples of {THREADS} up to {MAX_COLUMNS}"
    if jnp.dtype(dtypes["x"]) not in (jnp.bfloat16, jnp.float32):
        return f"x is {jnp.dtype(dtypes['x'])}; it takes bfloat16 and float32"
    return None


def rms_norm(
    x: jax.Array, weight: jax.Array, *, eps: float, tiles: None = None, interpret: bool = False
) -> jax.Array:
    """See `reference.rms_norm`. `tiles` is None: there is nothing to choose."""
    _check(x)
    rows = x.reshape(-1, x.shape[-1])

    def rms_norm_kernel(x_gmem: Any, weight_gmem: Any, out_gmem: Any) -> None:
        row, layout = lax.axis_index("row"), _row_layout(x.shape[-1])
        wide = load(x_gmem.at[row], layout, interpret).astype(jnp.float32)
        scale = load(weight_gmem, layout, interpret)
        out_gmem[row] = _normed(wide, scale, eps).astype(x.dtype)

    out = _over_rows(rms_norm_kernel, (rows,), interpret)(rows, weight.astype(jnp.float32))
    return out[0].reshape(x.shape)


def add_rms_norm(
    x: jax.Array,
    parts: jax.Array,
    weight: jax.Array,
    addend_weight: jax.Array | None = None,
    *,
    eps: float,
    tiles: None = None,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """See `reference.add_rms_norm`. `tiles` is None: there is nothing to choose."""
    _check(x)
    columns, num_parts = x.shape[-1], parts.shape[0]
    arrays = [x.reshape(-1, columns), parts.reshape(num_parts, -1, columns)]
    arrays += [one.astype(jnp.float32) for one in (weight, addend_weight) if one is not None]

    def add_rms_norm_kernel(x_gmem: Any, parts_gmem: Any, *others: Any) -> None:
        weight_gmem, *addend_weight_gmem, total_gmem, out_gmem = others
        row, layout = lax.axis_index("row"), _row_layout(columns)

        def read(ref: Any) -> jax.Array:
            return load(ref, layout, interpret).astype(jnp.float32)

        addend = read(parts_gmem.at[0, row])
        for part in range(1, num_parts):
            addend = addend + read(parts_gmem.at[part, row])
        for scale_gmem in addend_weight_gmem:
            addend = _normed(addend, read(scale_gmem), eps)
        addend = addend.astype(x.dtype).astype(jnp.float32)
        total = (read(x_gmem.at[row]) + addend).astype(x.dtype)
        total_gmem[row] = total
        out_gmem[row] = _normed(total.astype(jnp.float32), read(weight_gmem), eps).astype(x.dtype)

    run = _over_rows(add_rms_norm_kernel, (arrays[0], arrays[0]), interpret)
    total, out = run(*arrays)
    return total.reshape(x.shape), out.reshape(x.shape)


def _check(x: jax.Array) -> None:
    refuse("rms_norm", "mosaic", _why_not_arrays({"x": x.shape}, {"x": x.dtype}))


def _normed(wide: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    mean_square = jnp.sum(wide * wide) / jnp.float32(wide.shape[0])
    return wide * lax.rsqrt(mean_square + jnp.float32(eps)) * scale


def _row_layout(columns: int) -> Any:
    """Each thread holds runs of neighbours, as long as one load can fetch."""
    return plgpu.Layout.WG_STRIDED((columns,), math.gcd(columns // THREADS, MAX_VECTOR))


def _over_rows(kernel: Any, outputs: tuple[jax.Array, ...], interpret: bool) -> Any:
    return plgpu.kernel(
        kernel,
        out_type=tuple(jax.ShapeDtypeStruct(one.shape, one.dtype) for one in outputs),
        grid=(outputs[0].shape[0],),
        grid_names=("row",),
        interpret=simulation(interpret),
    )
