"""`add_rms_norm`: every implementation against float64; compiled for GPUs that are not here."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.dispatch import HOPPER, Platform
from pallas_kernels.rms_norm import add_rms_norm, mosaic, resolve_residual
from pallas_kernels.rms_norm.cases import RESIDUAL_CASES, ResidualCase
from tests.pallas_kernels.rms_norm.calls import EPS, assert_close, drawn, exact, weights
from tests.support.aot import check_kernels, compile_kernel, needs_aot

SMALL = [case for case in RESIDUAL_CASES if case.is_small]


def arrays_of(case: ResidualCase, seed: int = 0) -> list[Any]:
    """Rows, parts and weights; None for the weights of a norm that is not there."""
    shape = (case.parts, case.rows, case.columns)
    values = np.random.default_rng(seed + 4).normal(size=shape) * case.deviation
    parts, weight = jnp.asarray(values, jnp.float32), weights(case.columns)
    return [drawn(case, seed), parts, weight, 2 * weight if case.norms_addend else None]


def check(case: ResidualCase, implementation: Any, seed: int = 0) -> None:
    arrays = arrays_of(case, seed)
    x, parts, weight, addend_weight = arrays
    total, found = add_rms_norm(*arrays, eps=EPS, implementation=implementation)
    assert total.dtype == found.dtype == x.dtype
    assert_close(found, exact(total, weight))
    if addend_weight is None:
        added = x + functools.reduce(jnp.add, list(parts)).astype(x.dtype)
        np.testing.assert_array_equal(np.asarray(total, np.float32), np.asarray(added, np.float32))
        return
    addend = exact(np.asarray(parts, np.float64).sum(axis=0), addend_weight)
    assert_close(total, np.asarray(x, np.float64) + addend)


@pytest.mark.parametrize("implementation", ["reference", "xla", "simulated"])
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_equals_float64(case: ResidualCase, implementation: str) -> None:
    check(case, implementation)


def check_any(
    sizes: tuple[int, int, int], dtype: str, norms_addend: bool, deviation: float, seed: int
) -> None:
    rows, blocks, parts = sizes
    case = ResidualCase(
        name="any",
        rows=rows,
        columns=128 * blocks,
        parts=parts,
        dtype=dtype,
        norms_addend=norms_addend,
        deviation=deviation,
    )
    check(case, "simulated", seed)


DTYPES = st.sampled_from(["bfloat16", "float32"])
DEVIATIONS = st.sampled_from([1e-3, 1.0, 1e3])


@settings(max_examples=4, derandomize=True, deadline=None, database=None)
@given(
    st.tuples(st.integers(1, 4), st.integers(1, 12), st.integers(1, 4)),
    DTYPES,
    st.booleans(),
    DEVIATIONS,
    st.integers(0, 99),
)
def test_any_shape(
    sizes: tuple[int, int, int], dtype: str, norms_addend: bool, deviation: float, seed: int
) -> None:
    check_any(sizes, dtype, norms_addend, deviation, seed)


@pytest.mark.slow
@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(
    st.tuples(st.integers(1, 20), st.integers(1, 64), st.integers(1, 8)),
    DTYPES,
    st.booleans(),
    DEVIATIONS,
    st.integers(0, 99),
)
def test_any_larger_shape(
    sizes: tuple[int, int, int], dtype: str, norms_addend: bool, deviation: float, seed: int
) -> None:
    check_any(sizes, dtype, norms_addend, deviation, seed)


@pytest.mark.parametrize("norms_addend", [False, True])
def test_rows_of_nan_reach_no_other(norms_addend: bool) -> None:
    """In bits; once the row itself is NaN, once what is added to it."""
    case = ResidualCase(name="poison", rows=3, columns=256, parts=2, norms_addend=norms_addend)
    x, parts, *scales = arrays_of(case)
    run = functools.partial(mosaic.add_rms_norm, eps=EPS, interpret=True)
    whole = run(x, parts, *scales)
    poisoned = run(x.at[0].set(jnp.nan), parts.at[1, 2].set(jnp.nan), *scales)
    for clean, found in zip(whole, poisoned, strict=True):
        assert jnp.isnan(found[::2]).all()
        np.testing.assert_array_equal(*(np.asarray(one[1], np.float32) for one in (clean, found)))


def test_leading_axes_are_kept() -> None:
    x, parts = jnp.ones((2, 1, 128), jnp.bfloat16), jnp.ones((2, 2, 1, 128), jnp.float32)
    total, found = mosaic.add_rms_norm(x, parts, weights(128), eps=EPS, interpret=True)
    assert total.shape == found.shape == x.shape


def test_auto_with_a_residual_is_the_kernel_where_it_serves() -> None:
    assert resolve_residual("auto", HOPPER, 4096, "bfloat16") == "mosaic"
    assert resolve_residual("auto", HOPPER, 576, "bfloat16") == "xla"
    assert resolve_residual("auto", Platform(kind="cpu"), 4096, "bfloat16") == "reference"
    assert resolve_residual("reference", HOPPER, 4096, "bfloat16") == "reference"


@needs_aot
@pytest.mark.parametrize(
    "wanted", ["8b decode", "gemma3", pytest.param("", marks=pytest.mark.slow)]
)
def test_compiles_without_spills(wanted: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {}
    for case in [case for case in RESIDUAL_CASES if wanted in case.name]:
        shapes = jax.eval_shape(lambda *given: given, *arrays_of(case))
        run = functools.partial(mosaic.add_rms_norm, eps=EPS)
        rows[f"add_rms_norm: {case.name}"] = compile_kernel(run, *shapes)
    check_kernels(rows, capsys)
