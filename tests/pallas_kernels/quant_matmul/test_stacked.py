"""`stacked_quant_matmul`: as `quant_matmul` of each matrix, and what nobody wants is not read."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.quant_matmul import mosaic, quant_matmul, stacked_quant_matmul
from pallas_kernels.quant_matmul.cases import STACKED_CASES, WHOLE_ROW
from pallas_kernels.quant_matmul.cases import Case as StackCase
from tests.pallas_kernels.quant_matmul.packed import Case, make_case
from tests.support.aot import compile_kernels, needs_aot, on_target
from tests.support.tolerances import KERNELS

SIMULATED = [
    pytest.param(case, marks=pytest.mark.slow if case.tier == "slow" else (), id=case.name)
    for case in STACKED_CASES
    if case.tier != "bench"
]
QUICK = [case for case in STACKED_CASES if case.tier == "quick"]


def make_stack(case: StackCase) -> tuple[list[Case], np.ndarray]:
    """The matrices, and rows for each."""
    options: dict[str, Any] = {"group": case.group, "out_group": case.out_group}
    options |= {"addend": case.addend, "shape": (case.outputs, case.columns)}
    dtype = ml_dtypes.bfloat16 if case.scales == "bfloat16" else np.dtype(case.scales)
    count = len(case.counts)
    cases = [
        make_case(case.codes, scale_dtype=dtype, seed=seed, **options) for seed in range(count)
    ]
    x = np.random.default_rng(9).normal(size=(count, case.rows, case.columns))
    return cases, x.astype(ml_dtypes.bfloat16)


def arrays_of(cases: list[Case]) -> dict[str, jax.Array]:
    names = [name for name in cases[0].arguments() if name not in cases[0].options]
    return {
        name: jnp.stack([jnp.asarray(case.arguments()[name]) for case in cases]) for name in names
    }


def counts_of(case: StackCase) -> jax.Array:
    return jnp.asarray(case.counts, jnp.int32)


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_the_reference_is_each_of_them(case: StackCase) -> None:
    cases, x = make_stack(case)
    found = stacked_quant_matmul(
        jnp.asarray(x), counts=counts_of(case), **arrays_of(cases), group=case.group
    )
    for number, one in enumerate(cases):
        expected = quant_matmul(jnp.asarray(x[number]), **one.arguments())
        np.testing.assert_allclose(np.asarray(found[number]), expected, rtol=1e-5, atol=1e-5)


def check(case: StackCase) -> None:
    """Rows that nobody wants are NaN, and so are scales of matrices of which no row is wanted."""
    cases, x = make_stack(case)
    counts = np.array(case.counts)
    wanted = np.arange(case.rows)[None] < counts[:, None]
    arrays = arrays_of(cases)
    arrays["scales"] = jnp.where((counts > 0)[:, None, None], arrays["scales"], jnp.nan)
    rows = jnp.where(wanted[:, :, None], jnp.asarray(x), jnp.nan)
    options: dict[str, Any] = {"group": case.group, "out_group": case.out_group}
    run = functools.partial(stacked_quant_matmul, **options, implementation="simulated")
    found = np.asarray(jax.jit(run)(rows, counts=counts_of(case), **arrays), np.float64)
    matrices = np.stack([one.matrix for one in cases]).astype(np.float64)
    exact = np.einsum("xci,xoi->xco", x.astype(np.float64), matrices)
    assert found.shape == exact.shape and np.isfinite(found[wanted]).all()
    difference = np.linalg.norm((found - exact)[wanted])
    assert difference <= KERNELS["float32"] * np.linalg.norm(exact[wanted])


@pytest.mark.parametrize("case", SIMULATED)
def test_simulated_equals_float64(case: StackCase) -> None:
    check(case)


@pytest.mark.slow
@settings(max_examples=20, derandomize=True, deadline=None, database=None)
@given(
    st.sampled_from(["int4", "int8"]),
    st.sampled_from(["none", "zeros", "offsets"]),
    st.sampled_from([16, 32, 64, 128, WHOLE_ROW]),
    st.lists(st.integers(0, 40), min_size=1, max_size=4),
    st.tuples(st.integers(1, 2), st.integers(1, 5)),
)
def test_any_shape(
    codes: Any, addend: Any, group: int, counts: list[int], blocks: tuple[int, int]
) -> None:
    sizes = {"rows": max(1, *counts, 1), "outputs": 64 * blocks[0], "columns": 128 * blocks[1]}
    options: dict[str, Any] = {"addend": addend, "group": group, "counts": tuple(counts)}
    check(StackCase(name="any", codes=codes, **sizes, **options))


@needs_aot
@pytest.mark.parametrize(
    "case", [one for one in STACKED_CASES if one.tier == "bench"], ids=lambda case: case.name
)
def test_compiled_for_the_h200(case: StackCase, capsys: pytest.CaptureFixture[str]) -> None:
    """Without spills, and without a decoded matrix in memory."""
    count, rows, array = len(case.counts), case.rows, jax.ShapeDtypeStruct
    outputs, columns, group = case.outputs, case.columns, case.group
    width, dtype = (columns // 2, jnp.uint8) if case.codes == "int4" else (columns, jnp.int8)
    shapes = {
        "x": array((count, rows, columns), jnp.bfloat16),
        "codes": array((count, outputs, width), dtype),
        "scales": array((count, columns // group, outputs), jnp.bfloat16),
        "counts": array((count,), jnp.int32),
    }
    if case.addend != "none":
        shapes[case.addend] = array((count, columns // group, outputs), jnp.int8)
    run = functools.partial(mosaic.stacked_quant_matmul, group=group)
    lowered = jax.jit(lambda arrays: run(**arrays)).lower(on_target("h200", shapes))
    compiled, reports = compile_kernels(lowered)
    assert [one.spill_bytes for one in reports] == [0]
    assert reports[0].shared_bytes <= 227 * 1024
    assert compiled.memory_analysis().temp_size_in_bytes < 4 * count * rows * outputs * 4
    with capsys.disabled():
        print(f"\n{case.name}: {reports[0].registers} registers, {reports[0].shared_bytes:,} bytes")
