"""`rms_norm` on Mosaic GPU: simulated against float64, and what it takes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.dispatch import Platform
from pallas_kernels.rms_norm import (
    add_rms_norm,
    mosaic,
    resolve_implementation,
    resolve_residual,
    rms_norm,
)
from pallas_kernels.rms_norm.cases import CASES, Case
from tests.support.tolerances import KERNELS

EPS = 1e-6
HOPPER = Platform(kind="gpu", compute_capability=(9, 0))
SMALL = [case for case in CASES if case.is_small]


def drawn(case: Case, seed: int) -> jax.Array:
    values = np.random.default_rng(seed).normal(size=(case.rows, case.columns))
    return jnp.asarray(values * case.deviation, jnp.dtype(case.dtype))


def weights(columns: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(9).normal(size=columns), jnp.float32)


def exact(x: jax.Array, weight: jax.Array) -> np.ndarray:
    wide = np.asarray(x, np.float64)
    mean = (wide**2).mean(axis=-1, keepdims=True)
    return wide / np.sqrt(mean + EPS) * np.asarray(weight, np.float64)


def assert_close(found: jax.Array, expected: np.ndarray) -> None:
    difference = np.linalg.norm(np.asarray(found, np.float64) - expected)
    assert difference <= KERNELS[str(found.dtype)] * np.linalg.norm(expected)


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_simulated_equals_float64(case: Case) -> None:
    x, weight = drawn(case, 0), weights(case.columns)
    found = rms_norm(x, weight, eps=EPS, implementation="simulated")
    assert found.shape == x.shape and found.dtype == x.dtype
    assert_close(found, exact(x, weight))


def parts_of(case: Case, count: int) -> jax.Array:
    """[count, rows, columns] f32, what a sublayer adds in parts."""
    values = np.random.default_rng(4).normal(size=(count, case.rows, case.columns))
    return jnp.asarray(values * case.deviation, jnp.float32)


@pytest.mark.parametrize("implementation", ["reference", "xla", "simulated"])
@pytest.mark.parametrize("case", SMALL[:3], ids=lambda case: case.name)
def test_with_a_residual(case: Case, implementation: Any) -> None:
    x, parts, weight = drawn(case, 0), parts_of(case, 3), weights(case.columns)
    total, found = add_rms_norm(x, parts, weight, eps=EPS, implementation=implementation)
    added = x + (parts[0] + parts[1] + parts[2]).astype(x.dtype)
    np.testing.assert_array_equal(np.asarray(total, np.float32), np.asarray(added, np.float32))
    assert_close(found, exact(total, weight))


@pytest.mark.parametrize("implementation", ["reference", "xla", "simulated"])
def test_what_is_added_may_be_normed_first(implementation: Any) -> None:
    case = SMALL[1]
    x, parts, weight = drawn(case, 0), parts_of(case, 2), weights(case.columns)
    total, found = add_rms_norm(
        x, parts, weight, 2 * weight, eps=EPS, implementation=implementation
    )
    added = np.asarray(x, np.float64) + exact(parts[0] + parts[1], 2 * weight)
    assert_close(total, added)
    assert_close(found, exact(total, weight))


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


def test_auto_with_a_residual_is_the_kernel_where_it_serves() -> None:
    assert resolve_residual("auto", HOPPER, 4096, "bfloat16") == "mosaic"
    assert resolve_residual("auto", HOPPER, 576, "bfloat16") == "xla"
    assert resolve_residual("auto", Platform(kind="cpu"), 4096, "bfloat16") == "reference"
    assert resolve_residual("reference", HOPPER, 4096, "bfloat16") == "reference"


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
