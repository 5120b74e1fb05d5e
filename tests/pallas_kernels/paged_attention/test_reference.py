"""The reference of `paged_attention` against dense float64 attention, and what it must not read."""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from pallas_kernels.paged_attention.reference import paged_attention
from tests.pallas_kernels.paged_attention.coded import code_sides
from tests.pallas_kernels.paged_attention.dense import (
    Problem,
    dense_attention,
    make_problem,
    make_sinks,
)

# Page sizes on both sides of a block of 64 keys, groups of 1 to 6, heads padded and not.
SHAPES: dict[str, dict[str, Any]] = {
    "decode": dict(num_queries=1, num_heads=9, num_kv_heads=3, head_dim=64, page_tokens=64),
    "decode of one head": dict(
        num_queries=1, num_heads=1, num_kv_heads=1, head_dim=16, page_tokens=8
    ),
    "chunk": dict(num_queries=16, num_heads=4, num_kv_heads=2, head_dim=16, page_tokens=16),
    "verify": dict(num_queries=5, num_heads=6, num_kv_heads=1, head_dim=80, page_tokens=32),
    "pages of 128": dict(num_queries=8, num_heads=4, num_kv_heads=4, head_dim=32, page_tokens=128),
    "pages of 256": dict(num_queries=3, num_heads=4, num_kv_heads=2, head_dim=256, page_tokens=256),
}
STARTS = {1: [0, 7, 63, 64, 130], 3: [0, 61, 62, 200], 5: [0, 31, 126, 60], 8: [0, 120, 9, 128]}
STARTS[16] = [0, 16, 48, 112]


@functools.cache
def program(scale: float, window: int, softcap: float) -> Any:
    return jax.jit(functools.partial(paged_attention, scale=scale, window=window, softcap=softcap))


def attend(
    problem: Problem,
    *,
    scale: float = 0.25,
    window: int = 0,
    softcap: float = 0.0,
    sinks: np.ndarray | None = None,
) -> np.ndarray:
    return np.asarray(program(scale, window, softcap)(*problem.arrays, sinks))


def assert_close(problem: Problem, found: np.ndarray, **options: Any) -> None:
    exact = dense_attention(problem, **{"scale": 0.25, **options})
    for row, expected in enumerate(exact):
        np.testing.assert_allclose(found[row, : len(expected)], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in ("decode", "chunk", "pages of 256")),
        *((name, {"window": 9}) for name in ("chunk", "pages of 128")),
        ("decode of one head", {"window": 1}),
        ("verify", {"window": 100, "softcap": 2.0}),
    ],
)
def test_equals_dense_attention(name: str, options: dict[str, Any]) -> None:
    shape = SHAPES[name]
    most = shape["num_queries"]
    starts = STARTS[most]
    lengths = [max(1, most - row) for row in range(len(starts))]
    problem = make_problem(starts, lengths, window=options.get("window", 0), **shape)
    assert_close(problem, attend(problem, **options), **options)


ROWS = st.lists(st.tuples(st.integers(0, 150), st.integers(0, 4)), min_size=3, max_size=3)
PAGES_AND_WINDOWS = st.sampled_from([(8, 0), (8, 5), (32, 70), (128, 0), (128, 5)])


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(ROWS, PAGES_AND_WINDOWS, st.integers(0, 99))
def test_any_starts_and_lengths_with_poison_around(
    rows: list[tuple[int, int]], page_and_window: tuple[int, int], seed: int
) -> None:
    """What no query may see holds NaN: pages of nobody, the null page, a page's unused end.

    Columns whose pages a window gave up point to the null page, so that it is fetched there.
    """
    page_tokens, window = page_and_window
    problem = make_problem(
        [start for start, _ in rows],
        [length for _, length in rows],
        num_queries=4,
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
        page_tokens=page_tokens,
        table_columns=-(-154 // page_tokens),
        window=window,
        poison=float("nan"),
        seed=seed,
    )
    assert_close(problem, attend(problem, window=window), window=window)


@pytest.mark.parametrize(
    ("name", "options"),
    [("decode", {}), ("chunk", {"window": 9}), ("verify", {"softcap": 2.0})],
)
def test_sinks_take_a_share(name: str, options: dict[str, Any]) -> None:
    """Each of its own head, whatever the window; a softcap leaves them as they are."""
    shape = SHAPES[name]
    starts = STARTS[shape["num_queries"]]
    lengths = [max(1, shape["num_queries"] - row) for row in range(len(starts))]
    problem = make_problem(starts, lengths, window=options.get("window", 0), **shape)
    options = {**options, "sinks": make_sinks(shape["num_heads"])}
    assert_close(problem, attend(problem, **options), **options)


def test_bits_with_sinks_do_not_depend_on_rows_or_chunk() -> None:
    problem = make_problem(
        [80, 3, 64], [16] * 3, num_queries=16, num_heads=6, num_kv_heads=2, head_dim=48,
        page_tokens=16,
    )  # fmt: skip
    sinks = make_sinks(6)
    whole = attend(problem, sinks=sinks)
    for rows, first in (([2], 0), ([1, 0], 5)):
        part = replace(
            problem,
            q=problem.q[rows, first : first + 1],
            table=problem.table[rows],
            starts=problem.starts[rows] + np.int32(first),
            lengths=np.ones(len(rows), np.int32),
        )
        found = attend(part, sinks=sinks)
        np.testing.assert_array_equal(found, whole[rows, first : first + 1])


def test_a_sink_far_below_changes_nothing() -> None:
    problem = make_problem([0, 60], [5, 5], **SHAPES["verify"])
    found = attend(problem, sinks=np.full(6, -1e4, np.float32))
    np.testing.assert_allclose(found, attend(problem), rtol=1e-6, atol=1e-7)


def test_an_empty_row_beside_others_changes_nothing() -> None:
    shape = SHAPES["chunk"]
    problem = make_problem([0, 0, 48], [9, 0, 16], poison=float("nan"), **shape)
    found = attend(problem)
    assert_close(problem, found)
    other = replace(problem, table=problem.table.copy())
    other.table[1] = problem.table[0]
    np.testing.assert_array_equal(attend(other)[[0, 2]], found[[0, 2]])


def test_padded_queries_are_finite() -> None:
    problem = make_problem([0, 3], [1, 0], **SHAPES["chunk"])
    assert np.isfinite(attend(problem)).all()


def test_a_row_s_bits_do_not_depend_on_the_others() -> None:
    shape = SHAPES["decode"]
    starts = [200, 3, 64, 63, 127, 0, 90, 150]
    problem = make_problem(starts, [1] * 8, window=70, **shape)
    whole = attend(problem, window=70)
    for rows in ([0, 1], [5, 2]):
        some = [array if i in (1, 2) else array[rows] for i, array in enumerate(problem.arrays)]
        found = np.asarray(program(0.25, 70, 0.0)(*some))
        np.testing.assert_array_equal(found, whole[rows])


@pytest.mark.parametrize("head_dim", [16, 64, 80, 96])
def test_a_query_s_bits_do_not_depend_on_the_chunk(head_dim: int) -> None:
    """Prefill of 64 tokens at once, in four parts, and some of them one by one: the same bits."""
    problem = make_problem(
        [80], [64], num_queries=64, num_heads=4, num_kv_heads=2, head_dim=head_dim, page_tokens=16
    )
    whole = attend(problem)[0]
    for size, firsts in ((1, (0, 1, 37, 63)), (16, (0, 16, 32, 48))):
        for first in firsts:
            part = replace(
                problem,
                q=problem.q[:, first : first + size],
                starts=problem.starts + np.int32(first),
                lengths=np.array([size], np.int32),
            )
            np.testing.assert_array_equal(attend(part)[0], whole[first : first + size])


def test_bits_do_not_depend_on_the_page_size() -> None:
    found = []
    for page_tokens in (8, 64, 256):
        problem = make_problem(
            [100, 5],
            [4, 2],
            num_queries=4,
            num_heads=4,
            num_kv_heads=2,
            head_dim=32,
            page_tokens=page_tokens,
            table_columns=256 // page_tokens,
        )
        found.append(attend(problem))
    # The same random numbers each time, since a row always has 256 positions.
    for other in found[1:]:
        np.testing.assert_array_equal(other[0], found[0][0])
        np.testing.assert_array_equal(other[1, :2], found[0][1, :2])


def test_pages_in_bfloat16_are_read_exactly() -> None:
    problem = make_problem([0, 60], [5, 5], **SHAPES["verify"])
    halves = [jnp.asarray(x).astype(jnp.bfloat16) for x in (problem.k_pages, problem.v_pages)]
    widened = [np.asarray(x.astype(jnp.float32)) for x in halves]
    wide = attend(replace(problem, k_pages=widened[0], v_pages=widened[1]))
    bits = [lax.bitcast_convert_type(x, jnp.uint16) for x in halves]
    for pages in (halves, bits):
        narrow = jax.jit(functools.partial(paged_attention, scale=0.25))(
            problem.q, *pages, problem.table, problem.starts, problem.lengths
        )
        np.testing.assert_array_equal(np.asarray(narrow), wide)


KINDS = [("int8", "int8"), ("fp8", "fp8"), ("int8", "floats"), ("floats", "fp8")]


@pytest.mark.parametrize("as_bits", [False, True])
@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
def test_codes_mean_code_times_scale(kinds: tuple[str, str], as_bits: bool) -> None:
    """Against float64 over what the codes stand for; what nobody wrote holds NaN, scales too."""
    problem = make_problem([0, 70, 9], [3, 5, 0], poison=float("nan"), **SHAPES["verify"])
    k_pages, v_pages, held = code_sides(problem, *kinds, as_bits=as_bits)
    run = jax.jit(functools.partial(paged_attention, scale=0.25))
    found = run(problem.q, k_pages, v_pages, problem.table, problem.starts, problem.lengths)
    assert_close(held, np.asarray(found))


@pytest.mark.parametrize("kinds", KINDS[:3], ids="-".join)
def test_bits_over_codes_do_not_depend_on_rows_or_chunk(kinds: tuple[str, str]) -> None:
    problem = make_problem(
        [80, 3, 64, 0], [16] * 4, num_queries=16, num_heads=4, num_kv_heads=2, head_dim=48,
        page_tokens=16,
    )  # fmt: skip
    k_pages, v_pages, _ = code_sides(problem, *kinds, as_bits=True)
    run = jax.jit(functools.partial(paged_attention, scale=0.25))
    whole = np.asarray(
        run(problem.q, k_pages, v_pages, problem.table, problem.starts, problem.lengths)
    )
    for rows, first in (([2], 0), ([3, 0], 5), ([1, 2, 3], 15)):
        one = run(
            problem.q[rows, first : first + 1],
            k_pages,
            v_pages,
            problem.table[rows],
            problem.starts[rows] + np.int32(first),
            np.ones(len(rows), np.int32),
        )
        np.testing.assert_array_equal(np.asarray(one), whole[rows, first : first + 1])


def test_large_scores_do_not_overflow() -> None:
    problem = make_problem([70, 0], [5, 5], **SHAPES["verify"])
    problem = replace(problem, q=problem.q * np.float32(1e4))
    found = attend(problem)
    assert np.isfinite(found).all()
    exact = dense_attention(problem, scale=0.25)
    np.testing.assert_allclose(found[0], exact[0], atol=1e-2)
