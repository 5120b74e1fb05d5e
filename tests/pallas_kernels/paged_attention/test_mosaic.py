"""`paged_attention` on Mosaic GPU: simulated against float64, and in bits against itself.

Pages of nobody, the null page and a page's unused end hold NaN in every case here.
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

from pallas_kernels.dispatch import Platform
from pallas_kernels.paged_attention import mosaic, paged_attention, resolve_implementation
from pallas_kernels.paged_attention.cases import CASES, Case
from pallas_kernels.paged_attention.tiles import DecodeTiles, PrefillTiles
from tests.pallas_kernels.paged_attention.coded import code_sides
from tests.pallas_kernels.paged_attention.dense import (
    Problem,
    dense_attention,
    make_problem,
    make_sinks,
)
from tests.support.tolerances import KERNELS

HOPPER = Platform(kind="gpu", compute_capability=(9, 0))
SIMULATED = [
    pytest.param(case, marks=pytest.mark.slow if case.tier == "slow" else (), id=case.name)
    for case in CASES
    if case.tier != "bench"
]
DECODE = next(case for case in CASES if case.name == "decode in splits")


def problem_of(case: Case, seed: int = 0) -> Problem:
    """The case's arrays with values that bfloat16 holds exactly."""
    problem = make_problem(
        list(case.starts),
        list(case.lengths),
        num_queries=case.num_queries,
        num_heads=case.num_heads,
        num_kv_heads=case.num_kv_heads,
        head_dim=case.head_dim,
        page_tokens=case.page_tokens,
        table_columns=case.table_columns,
        window=case.window,
        poison=float("nan"),
        seed=seed,
    )
    names = ("q", "k_pages", "v_pages", "keys", "values")
    rounded = {name: getattr(problem, name).astype(jnp.bfloat16) for name in names}
    return replace(problem, **{name: x.astype(np.float32) for name, x in rounded.items()})


@functools.cache
def program(scale: float, window: int, softcap: float, split_tokens: int, code_stages: int) -> Any:
    tiles = None
    if split_tokens:
        sizes = {"stages": 2, "split_tokens": split_tokens, "code_stages": code_stages}
        tiles = DecodeTiles(block_keys=64, **sizes)
    options = {"scale": scale, "window": window, "softcap": softcap, "tiles": tiles}
    return jax.jit(functools.partial(mosaic.paged_attention, **options, interpret=True))


def simulate(case: Case, problem: Problem) -> np.ndarray:
    q, _, _, *rows = (jnp.asarray(array) for array in problem.arrays)
    k_pages, v_pages, _ = code_sides(problem, case.keys, case.values)
    code_stages = 2 if {case.keys, case.values} != {"floats"} else 0
    run = program(case.head_dim**-0.5, case.window, case.softcap, case.split_tokens, code_stages)
    sinks = [jnp.asarray(make_sinks(case.num_heads))] if case.has_sinks else []
    found = run(q.astype(jnp.bfloat16), k_pages, v_pages, *rows, *sinks)
    assert found.dtype == jnp.bfloat16
    return np.asarray(found, np.float64)


def assert_close(case: Case, problem: Problem, found: np.ndarray) -> None:
    *_, held = code_sides(problem, case.keys, case.values)
    exact = dense_attention(
        held,
        scale=case.head_dim**-0.5,
        window=case.window,
        softcap=case.softcap,
        sinks=make_sinks(case.num_heads) if case.has_sinks else None,
    )
    assert np.isfinite(found).all()
    for row, expected in enumerate(exact):
        difference = np.linalg.norm(found[row, : len(expected)] - expected)
        assert difference <= KERNELS["bfloat16"] * np.linalg.norm(expected)


@pytest.mark.parametrize("case", SIMULATED)
def test_simulated_equals_float64(case: Case) -> None:
    problem = problem_of(case)
    assert_close(case, problem, simulate(case, problem))


ROWS = st.lists(st.tuples(st.integers(0, 150), st.integers(0, 3)), min_size=2, max_size=2)
KINDS = st.sampled_from([(8, 0, 0), (16, 70, 0), (32, 0, 64), (128, 5, 64), (128, 0, 128)])


def check_any(
    rows: list[tuple[int, int]], kind: tuple[int, int, int], group: int, seed: int
) -> None:
    page_tokens, window, split_tokens = kind
    case = Case(
        name="any",
        starts=tuple(start for start, _ in rows),
        lengths=tuple(length for _, length in rows),
        num_queries=3,
        num_heads=group,
        num_kv_heads=1,
        head_dim=64,
        page_tokens=page_tokens,
        window=window,
        split_tokens=split_tokens,
        table_columns=-(-153 // page_tokens),  # one shape a kind and group: fewer compiles
    )
    problem = problem_of(case, seed)
    assert_close(case, problem, simulate(case, problem))


@settings(max_examples=6, derandomize=True, deadline=None, database=None)
@given(ROWS, st.integers(0, 99))
def test_any_starts_and_lengths(rows: list[tuple[int, int]], seed: int) -> None:
    check_any(rows, (16, 70, 64), 2, seed)


@pytest.mark.slow
@settings(max_examples=40, derandomize=True, deadline=None, database=None)
@given(ROWS, KINDS, st.integers(1, 6), st.integers(0, 99))
def test_any_shape(
    rows: list[tuple[int, int]], kind: tuple[int, int, int], group: int, seed: int
) -> None:
    check_any(rows, kind, group, seed)


def test_a_row_s_bits_do_not_depend_on_the_others() -> None:
    case = replace(DECODE, starts=(200, 3, 129), lengths=(1, 1, 1), table_columns=4)
    problem = problem_of(case)
    whole = simulate(case, problem)
    rows = [2, 0]
    few = {name: getattr(problem, name)[rows] for name in ("q", "table", "starts", "lengths")}
    np.testing.assert_array_equal(simulate(case, replace(problem, **few)), whole[rows])


def test_a_query_s_bits_are_those_of_a_decode_step() -> None:
    """Verifying three tokens at once gives what three decode steps give."""
    case = replace(DECODE, starts=(126,), lengths=(3,), num_queries=3, table_columns=4)
    problem = problem_of(case)
    whole = simulate(case, problem)
    for token in range(3):
        one = replace(
            problem,
            q=problem.q[:, token : token + 1],
            starts=problem.starts + np.int32(token),
            lengths=np.array([1], np.int32),
        )
        np.testing.assert_array_equal(simulate(case, one)[0], whole[0, token : token + 1])


def test_large_scores_do_not_overflow() -> None:
    case = replace(DECODE, starts=(130,), lengths=(1,))
    problem = problem_of(case)
    problem = replace(problem, q=problem.q * np.float32(1024))
    assert_close(case, problem, simulate(case, problem))


def test_the_op_takes_it_by_name() -> None:
    case = next(case for case in CASES if case.name == "decode of one head")
    *floats, table, starts, lengths = (jnp.asarray(array) for array in problem_of(case).arrays)
    halves = [x.astype(jnp.bfloat16) for x in floats]
    arrays = (*halves, table, starts, lengths, jnp.asarray(make_sinks(1)))
    options: dict[str, Any] = {"scale": 0.125, "implementation": "simulated"}
    found = paged_attention(*arrays, **options)
    expected = mosaic.paged_attention(*arrays, scale=0.125, interpret=True)
    np.testing.assert_array_equal(np.asarray(found, np.float32), np.asarray(expected, np.float32))


def call(**changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    head_dim, page = changes.get("head_dim", 128), changes.get("page_tokens", 128)
    shapes = {"q": (8, 1, 32, head_dim)}
    shapes |= {name: (99, 8, page, head_dim) for name in ("k_pages", "v_pages")}
    dtypes = dict.fromkeys(shapes, jnp.bfloat16) | changes.get("dtypes", {})
    return shapes, dtypes


@pytest.mark.parametrize(
    ("changes", "platform", "reason"),
    [
        ({}, HOPPER, None),
        ({"head_dim": 96}, HOPPER, "heads have 96 values; it takes 64, 128, 256"),
        ({"page_tokens": 4}, HOPPER, "powers of two from 8"),
        ({"page_tokens": 48}, HOPPER, "powers of two from 8"),
        ({"dtypes": {"q": jnp.float32}}, HOPPER, "q is float32"),
        ({"dtypes": {"k_pages": jnp.uint16}}, HOPPER, "k_pages is uint16"),
        ({"dtypes": {"v_pages": jnp.uint8}}, HOPPER, "v_pages is uint8"),
        ({"dtypes": {"k_pages": jnp.int8}}, HOPPER, None),
        ({"dtypes": dict.fromkeys(("k_pages", "v_pages"), jnp.float8_e4m3fn)}, HOPPER, None),
        (
            {"dtypes": {"k_pages": jnp.int8}, "page_tokens": 32},
            HOPPER,
            "int8 pages hold 32 tokens; it takes powers of two from 64",
        ),
        ({}, Platform(kind="cpu"), "this is a cpu"),
        ({}, Platform(kind="gpu", compute_capability=(10, 0)), "has 10.0"),
    ],
)
def test_why_not(changes: dict[str, Any], platform: Platform, reason: str | None) -> None:
    found = mosaic.why_not(*call(**changes), platform)
    assert found is None if reason is None else reason in str(found)
    chosen = resolve_implementation("auto", *call(**changes), platform)
    plain = "row_groups" if platform.kind == "cpu" else "reference"
    assert chosen == (plain if reason else "mosaic")


def test_what_it_cannot_do_is_refused_with_the_reason() -> None:
    problem = problem_of(DECODE)
    with pytest.raises(ValueError, match="cannot use 'mosaic': q is float32.*'reference'"):
        mosaic.paged_attention(*map(jnp.asarray, problem.arrays), scale=1.0)


def test_tiles_for_other_pages_are_refused() -> None:
    case = next(case for case in CASES if case.name == "decode of fp8 pages of 16")
    problem = problem_of(case)
    k_pages, v_pages, _ = code_sides(problem, "fp8", "fp8")
    rows = [jnp.asarray(part) for part in (problem.table, problem.starts, problem.lengths)]
    q = jnp.asarray(problem.q).astype(jnp.bfloat16)
    tiles = DecodeTiles(block_keys=64, stages=2, split_tokens=1024)
    with pytest.raises(ValueError, match="code_stages must be at least 1 where pages hold codes"):
        mosaic.paged_attention(q, k_pages, v_pages, *rows, scale=1.0, tiles=tiles)


def test_tiles_of_the_other_kernel_are_refused() -> None:
    shapes = [(1, 1, 4, 64), (3, 1, 64, 64), (3, 1, 64, 64)]
    arrays = [jnp.zeros(shape, jnp.bfloat16) for shape in shapes]
    rows = [jnp.zeros(shape, jnp.int32) for shape in ((1, 2), (1,), (1,))]
    tiles = PrefillTiles(block_keys=64, stages=2)
    with pytest.raises(ValueError, match="this call goes to the decode kernel"):
        mosaic.paged_attention(*arrays, *rows, scale=1.0, tiles=tiles)


@pytest.mark.parametrize(
    ("sizes", "rule"),
    [
        ({"block_keys": 32, "stages": 2, "split_tokens": 64}, "must be 64 or 128"),
        ({"block_keys": 64, "stages": 1, "split_tokens": 64}, "at least 2"),
        ({"block_keys": 64, "stages": 2, "split_tokens": 100}, "multiple of block_keys=64"),
    ],
)
def test_tiles_say_their_constraints(sizes: dict[str, int], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        DecodeTiles(**sizes)


def test_splits_get_longer_where_there_would_be_too_many() -> None:
    tiles = DecodeTiles(block_keys=64, stages=2, split_tokens=1024)
    assert tiles.split_for(8192) == 1024
    assert tiles.split_for(131072) == 4096
