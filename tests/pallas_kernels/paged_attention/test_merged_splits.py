"""Long contexts of the op itself: split over several programs as its defaults say, and merged.

Simulated against float64. Pages of nobody, the null page, a page's unused end, and the partial
results of splits that no key is in, hold NaN in every case here.
"""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.paged_attention import paged_attention
from tests.pallas_kernels.paged_attention.coded import code_sides
from tests.pallas_kernels.paged_attention.dense import (
    Problem,
    dense_attention,
    make_problem,
    make_sinks,
)
from tests.support.tolerances import KERNELS

SPLIT = 1024  # positions of a program by default


def problem_of(starts: list[int], lengths: list[int], head_dim: int, **options: Any) -> Problem:
    """Two kv heads of two query heads each; values that bfloat16 holds exactly."""
    given = {"num_queries": max(1, *lengths), "num_heads": 4, "num_kv_heads": 2, "page_tokens": 128}
    given |= {"head_dim": head_dim, "poison": float("nan")} | options
    problem = make_problem(starts, lengths, **given)
    names = ("q", "k_pages", "v_pages", "keys", "values")
    halves = {name: jnp.asarray(getattr(problem, name), jnp.bfloat16) for name in names}
    return replace(problem, **{name: np.asarray(x, np.float32) for name, x in halves.items()})


def simulate(
    problem: Problem, sinks: np.ndarray | None, kind: str, options: dict[str, Any]
) -> np.ndarray:
    k_pages, v_pages, _ = code_sides(problem, kind, kind)
    rows = [jnp.asarray(one) for one in (problem.table, problem.starts, problem.lengths)]
    rows += [] if sinks is None else [jnp.asarray(sinks)]
    run = functools.partial(paged_attention, **options, implementation="simulated")
    found = jax.jit(run)(jnp.asarray(problem.q, jnp.bfloat16), k_pages, v_pages, *rows)
    return np.asarray(found, np.float64)


def check(
    problem: Problem, *, has_sinks: bool = True, kind: str = "floats", **options: Any
) -> np.ndarray:
    """What came out, which is as in float64."""
    options = {"scale": problem.q.shape[3] ** -0.5} | options
    sinks = make_sinks(problem.q.shape[2]) if has_sinks else None
    found = simulate(problem, sinks, kind, options)
    *_, held = code_sides(problem, kind, kind)
    for row, expected in enumerate(dense_attention(held, sinks=sinks, **options)):
        real = found[row, : len(expected)]
        assert np.isfinite(real).all()
        assert np.linalg.norm(real - expected) <= KERNELS["bfloat16"] * np.linalg.norm(expected)
    return found


def test_sinks_join_where_splits_are_merged() -> None:
    """Two splits: one row has keys in both, one in a part of the first, and one in none."""
    problem = problem_of([SPLIT + 70, 70, 0], [1, 1, 0], 128)
    found = check(problem)
    assert problem.table.shape[1] * 128 > SPLIT
    assert (found[2] == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head_dim", "has_sinks"), [(64, True), (128, False), (128, True), (256, True)]
)
def test_edges_of_splits(head_dim: int, has_sinks: bool) -> None:
    """A context that ends before, at and behind the edge of a split; a window across it."""
    problem = problem_of([SPLIT - 2, SPLIT - 1, SPLIT, 2 * SPLIT - 1], [1, 1, 1, 1], head_dim)
    check(problem, has_sinks=has_sinks)
    problem = problem_of([SPLIT + 9, 2 * SPLIT + 3, 0], [3, 2, 1], head_dim, window=1100)
    check(problem, has_sinks=has_sinks, window=1100)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_pages_of_codes(kind: str) -> None:
    check(problem_of([SPLIT + 100, 3, 0], [2, 2, 0], 128), kind=kind)


@pytest.mark.slow
def test_a_row_s_bits_do_not_depend_on_the_others() -> None:
    problem = problem_of([SPLIT + 200, 2 * SPLIT + 5, 63], [1, 1, 1], 128)
    whole, rows = check(problem), [2, 0]
    names = ("q", "table", "starts", "lengths", "keys", "values")
    few = replace(problem, **{name: getattr(problem, name)[rows] for name in names})
    np.testing.assert_array_equal(check(few), whole[rows])


@pytest.mark.slow
@settings(max_examples=20, derandomize=True, deadline=None, database=None)
@given(
    st.lists(st.tuples(st.integers(0, 2500), st.integers(0, 3)), min_size=2, max_size=2),
    st.sampled_from([64, 128, 256]),
    st.sampled_from([0, 70, 1500]),
    st.booleans(),
    st.integers(0, 99),
)
def test_any_long_context(
    rows: list[tuple[int, int]], head_dim: int, window: int, has_sinks: bool, seed: int
) -> None:
    starts, lengths = ([one[place] for one in rows] for place in (0, 1))
    sizes = {"num_queries": 3, "table_columns": 20, "page_tokens": 128}
    problem = problem_of(starts, lengths, head_dim, window=window, seed=seed, **sizes)
    check(problem, has_sinks=has_sinks, window=window)
