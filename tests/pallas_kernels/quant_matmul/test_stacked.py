"""`stacked_quant_matmul`: as `quant_matmul` of each matrix, and what nobody wants is not read."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pallas_kernels.quant_matmul import mosaic, quant_matmul, stacked_quant_matmul
from tests.pallas_kernels.quant_matmul.packed import Case, make_case
from tests.support.aot import compile_kernels, needs_aot, on_target
from tests.support.tolerances import KERNELS

COUNTS = np.array([3, 0, 20], np.int32)
KINDS = [("int4", "none", 128), ("int4", "zeros", 32), ("int8", "offsets", 64)]


def make_stack(kind: str, addend: str, group: int) -> tuple[list[Case], np.ndarray]:
    """Three matrices [64, 256], and 20 rows for each."""
    options: dict[str, Any] = {"addend": addend, "shape": (64, 256), "group": group}
    cases = [
        make_case(kind, scale_dtype=ml_dtypes.bfloat16, seed=seed, **options) for seed in range(3)
    ]
    x = np.random.default_rng(9).normal(size=(3, 20, 256)).astype(ml_dtypes.bfloat16)
    return cases, x


def arrays_of(cases: list[Case]) -> dict[str, jax.Array]:
    names = [name for name in cases[0].arguments() if name not in cases[0].options]
    return {
        name: jnp.stack([jnp.asarray(case.arguments()[name]) for case in cases]) for name in names
    }


@pytest.mark.parametrize(("kind", "addend", "group"), KINDS)
def test_the_reference_is_each_of_them(kind: str, addend: str, group: int) -> None:
    cases, x = make_stack(kind, addend, group)
    found = stacked_quant_matmul(
        jnp.asarray(x), counts=jnp.asarray(COUNTS), **arrays_of(cases), group=group
    )
    for number, case in enumerate(cases):
        one = {name: value for name, value in case.arguments().items() if name != "out_group"}
        expected = quant_matmul(jnp.asarray(x[number]), **one)
        np.testing.assert_allclose(np.asarray(found[number]), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("kind", "addend", "group"), KINDS)
def test_simulated_equals_float64(kind: str, addend: str, group: int) -> None:
    """Rows and scales that nobody wants are NaN."""
    cases, x = make_stack(kind, addend, group)
    wanted = np.arange(20)[None] < COUNTS[:, None]
    arrays = arrays_of(cases)
    arrays["scales"] = arrays["scales"].at[1].set(jnp.nan)
    rows = jnp.where(wanted[:, :, None], jnp.asarray(x), jnp.nan)
    run = functools.partial(stacked_quant_matmul, group=group, implementation="simulated")
    found = np.asarray(jax.jit(run)(rows, counts=jnp.asarray(COUNTS), **arrays), np.float64)
    assert found.shape == (3, 20, 64)
    matrices = np.stack([case.matrix for case in cases]).astype(np.float64)
    exact = np.einsum("xci,xoi->xco", x.astype(np.float64), matrices)
    difference = np.linalg.norm((found - exact)[wanted])
    assert difference <= KERNELS["float32"] * np.linalg.norm(exact[wanted])


@needs_aot
@pytest.mark.parametrize(
    ("codes", "group", "addend", "shape"),
    [
        ("int8", 32, "none", (32, 16, 2880, 2880)),  # gpt-oss in decode
        ("int4", 128, "none", (128, 16, 768, 2048)),  # Qwen3-30B-A3B
        ("int4", 128, "zeros", (8, 64, 14336, 4096)),  # Mixtral
    ],
)
def test_compiled_for_the_h200(
    codes: str,
    group: int,
    addend: str,
    shape: tuple[int, int, int, int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without spills, and without a decoded matrix in memory."""
    (count, rows, outputs, columns), array = shape, jax.ShapeDtypeStruct
    width, dtype = (columns // 2, jnp.uint8) if codes == "int4" else (columns, jnp.int8)
    shapes = {
        "x": array((count, rows, columns), jnp.bfloat16),
        "codes": array((count, outputs, width), dtype),
        "scales": array((count, columns // group, outputs), jnp.bfloat16),
        "counts": array((count,), jnp.int32),
    }
    if addend != "none":
        shapes[addend] = array((count, columns // group, outputs), jnp.int8)
    run = functools.partial(mosaic.stacked_quant_matmul, group=group)
    lowered = jax.jit(lambda arrays: run(**arrays)).lower(on_target("h200", shapes))
    compiled, reports = compile_kernels(lowered)
    assert [one.spill_bytes for one in reports] == [0]
    assert reports[0].shared_bytes <= 227 * 1024
    assert compiled.memory_analysis().temp_size_in_bytes < 4 * count * rows * outputs * 4
    with capsys.disabled():
        print(f"\n{shape}: {reports[0].registers} registers, {reports[0].shared_bytes:,} bytes")
