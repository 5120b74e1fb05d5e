"""`rms_norm` on Mosaic GPU compiled for GPUs that are not here: no spills, and it fits."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.rms_norm import mosaic
from pallas_kernels.rms_norm.mosaic import MAX_COLUMNS, MAX_VECTOR, THREADS
from tests.support.aot import KernelPlan, check_kernels, compile_kernel, needs_aot

# Columns of models, and of each vector that a thread may load the widest row: 8064 = 128 · 63,
# 7936 = 128 · 62, 7680 = 128 · 60, 8192 = 128 · 64.
WIDTHS = (
    *(128, 640, 896, 1024, 1152, 1536, 2048, 2304, 2560, 3072, 3584, 3840, 4096, 4608, 5120, 5376),
    *(6144, 6656, 7168, 7680, 7936, 8064, 8192),
)


def most_parts(columns: int) -> int:
    """Parts in which a product with so many outputs may come: see `quant_matmul.tiles.num_splits`;
    beyond 16 they are of more than 8192 inputs."""
    return min(16, -(-128 // (columns // 128)))


def compile_norm(rows: dict[str, KernelPlan], columns: int, parts: int, dtype: Any) -> None:
    """Adds all kernels of such rows to those of a table."""
    shape, name = jax.ShapeDtypeStruct, jnp.dtype(dtype)
    row, weight = shape((64, columns), dtype), shape((columns,), jnp.float32)
    addends = shape((parts, 64, columns), jnp.float32)
    rows[f"rms_norm of {columns} {name}"] = compile_kernel(
        functools.partial(mosaic.rms_norm, eps=1e-6), row, weight
    )
    run = functools.partial(mosaic.add_rms_norm, eps=1e-6)
    what = f"{columns} {name}, {parts} parts"
    rows[f"add_rms_norm of {what}"] = compile_kernel(run, row, addends, weight)
    rows[f"add_rms_norm of {what}, normed"] = compile_kernel(run, row, addends, weight, weight)


@needs_aot
def test_compiles_without_spills(capsys: pytest.CaptureFixture[str]) -> None:
    rows: dict[str, KernelPlan] = {}
    compile_norm(rows, 4096, 4, jnp.bfloat16)
    check_kernels(rows, capsys)


@needs_aot
@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_every_width_compiles_without_spills(
    dtype: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: dict[str, KernelPlan] = {}
    assert MAX_COLUMNS == max(WIDTHS) == THREADS * 8 * MAX_VECTOR
    for columns in WIDTHS:
        for parts in sorted({1, most_parts(columns)}):
            compile_norm(rows, columns, parts, dtype)
    check_kernels(rows, capsys)
