"""`rms_norm` on Mosaic GPU: simulated against float64, and what it takes."""

import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.dispatch import Platform
from pallas_kernels.rms_norm import mosaic, resolve_implementation, rms_norm
from pallas_kernels.rms_norm.cases import CASES, Case
from tests.pallas_kernels.rms_norm.calls import EPS, assert_close, drawn, exact, weights

HOPPER = Platform(kind="gpu", compute_capability=(9, 0))
SMALL = [case for case in CASES if case.is_small]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_simulated_equals_float64(case: Case) -> None:
    x, weight = drawn(case, 0), weights(case.columns)
    found = rms_norm(x, weight, eps=EPS, implementation="simulated")
    assert found.shape == x.shape and found.dtype == x.dtype
    assert_close(found, exact(x, weight))


@settings(max_examples=8, derandomize=True, deadline=None, database=None)
@given(st.integers(1, 4), st.integers(1, 12), st.sampled_from(["bfloat16", "float32"]))
def test_any_shape(rows: int, blocks: int, dtype: str) -> None:
    case = Case(name="any", rows=rows, columns=128 * blocks, dtype=dtype)
    x, weight = drawn(case, blocks), weights(case.columns)
    assert_close(mosaic.rms_norm(x, weight, eps=EPS, interpret=True), exact(x, weight))


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_the_form_for_xla_equals_float64(case: Case) -> None:
    x, weight = drawn(case, 0), weights(case.columns)
    assert_close(rms_norm(x, weight, eps=EPS, implementation="xla"), exact(x, weight))


def test_auto_is_the_form_for_xla_on_a_gpu_and_the_reference_elsewhere() -> None:
    assert resolve_implementation("auto", HOPPER) == "xla"
    assert resolve_implementation("auto", Platform(kind="cpu")) == "reference"
    assert resolve_implementation("auto") == "reference"


def test_a_row_of_nan_reaches_no_other() -> None:
    case = SMALL[1]
    x, weight = drawn(case, 0), weights(case.columns)
    found = mosaic.rms_norm(x.at[1].set(jnp.nan), weight, eps=EPS, interpret=True)
    assert jnp.isnan(found[1]).all()
    assert_close(found[::2], exact(x, weight)[::2])


def test_leading_axes_are_kept() -> None:
    x, weight = jnp.ones((2, 3, 128), jnp.bfloat16), weights(128)
    found = mosaic.rms_norm(x, weight, eps=EPS, interpret=True)
    assert found.shape == x.shape


@pytest.mark.parametrize(
    ("columns", "dtype", "platform", "reason"),
    [
        (4096, "bfloat16", HOPPER, None),
        (576, "bfloat16", HOPPER, "multiples of 128"),
        (16384, "bfloat16", HOPPER, "up to 8192"),
        (4096, "float16", HOPPER, "bfloat16 and float32"),
        (4096, "bfloat16", Platform(kind="cpu"), "this is a cpu"),
        (4096, "bfloat16", Platform(kind="gpu", compute_capability=(8, 0)), "has 8.0"),
    ],
)
def test_why_not(columns: int, dtype: str, platform: Platform, reason: str | None) -> None:
    found = mosaic.why_not({"x": (4, columns)}, {"x": dtype}, platform)
    assert found is None if reason is None else reason in str(found)


def test_what_it_cannot_do_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="cannot use 'mosaic': rows have 80 values.*'reference'"):
        rms_norm(jnp.ones((2, 80)), weights(80), eps=EPS, implementation="mosaic")
