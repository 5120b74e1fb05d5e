"""`rotate_write` on Mosaic GPU: simulated against float64, and what it takes."""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.dispatch import HOPPER, Platform
from pallas_kernels.rotate_write import mosaic, resolve_implementation, rotate_write
from pallas_kernels.rotate_write.cases import CASES, Case
from tests.pallas_kernels.rotate_write.calls import exact, make_call, poisoned
from tests.support.tolerances import KERNELS

SMALL = [case for case in CASES if case.is_small]


def simulate(arrays: list[Any], options: dict[str, Any]) -> list[np.ndarray]:
    run = functools.partial(rotate_write, **options, implementation="simulated")
    found = jax.jit(run)(*arrays)
    assert {one.dtype for one in found} == {jnp.dtype("bfloat16")}
    return [np.asarray(one) for one in found]


def check(case: Case, seed: int = 0) -> None:
    arrays, options = make_call(case, seed)
    expected = exact(arrays, **options)
    for found, wanted in zip(simulate(arrays, options), expected, strict=True):
        wide = found.astype(np.float64)
        assert np.linalg.norm(wide - wanted) <= KERNELS["bfloat16"] * np.linalg.norm(wanted)


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_simulated_equals_float64(case: Case) -> None:
    check(case)


HEADS = st.tuples(st.integers(1, 12), st.integers(1, 10)).map(lambda two: (2 * two[0], 2 * two[1]))


def check_any(
    heads: tuple[int, int], sizes: tuple[int, int, int, int], has_norms: bool, seed: int
) -> None:
    num_tokens, parts, head_dim, page_tokens = sizes
    case = Case(
        name="any",
        num_tokens=num_tokens,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=head_dim,
        parts=parts,
        has_norms=has_norms,
        page_tokens=page_tokens,
    )
    check(case, seed)


@settings(max_examples=4, derandomize=True, deadline=None, database=None)
@given(
    HEADS,
    st.tuples(
        st.integers(1, 3), st.integers(1, 3), st.sampled_from([64, 128]), st.sampled_from([1, 8])
    ),
    st.booleans(),
    st.integers(0, 99),
)
def test_any_shape(
    heads: tuple[int, int], sizes: tuple[int, int, int, int], has_norms: bool, seed: int
) -> None:
    check_any(heads, sizes, has_norms, seed)


@pytest.mark.slow
@settings(max_examples=50, derandomize=True, deadline=None, database=None)
@given(
    HEADS,
    st.tuples(
        st.integers(1, 20),
        st.integers(1, 8),
        st.sampled_from([64, 128, 256]),
        st.sampled_from([1, 16, 128]),
    ),
    st.booleans(),
    st.integers(0, 99),
)
def test_any_larger_shape(
    heads: tuple[int, int], sizes: tuple[int, int, int, int], has_norms: bool, seed: int
) -> None:
    check_any(heads, sizes, has_norms, seed)


@pytest.mark.parametrize("has_norms", [False, True])
def test_nan_leaks_neither_from_pages_nor_from_padding(has_norms: bool) -> None:
    """Pages hold NaN of many kinds; tokens that fill up a step are NaN and go to the null page.
    What no real token writes keeps its bits, but for the one place of the null page."""
    case = Case(name="poison", num_tokens=5, num_heads=4, num_kv_heads=2, parts=2)
    clean, options = make_call(replace(case, has_norms=has_norms))
    real, expected = [0, 2, 3], exact(clean, **options)
    arrays = poisoned(clean, real)
    queries, *written = simulate(arrays, options)
    wanted, pages = expected[0][real], (np.asarray(clean[5])[real], np.asarray(clean[6])[real])
    difference = np.linalg.norm(queries[real].astype(np.float64) - wanted)
    assert difference <= KERNELS["bfloat16"] * np.linalg.norm(wanted)
    assert np.isnan(queries[[1, 4]].astype(np.float32)).all()
    for before, after, right in zip(arrays[1:3], written, expected[1:], strict=True):
        new, right = (one[pages[0], :, pages[1]] for one in (after, right))
        assert np.linalg.norm(new - right) <= KERNELS["bfloat16"] * np.linalg.norm(right)
        is_kept = np.ones(before.shape, bool)
        is_kept[pages[0], :, pages[1]] = False
        is_kept[0, :, 0] = False
        bits = (np.asarray(one).view(np.uint16)[is_kept] for one in (before, after))
        np.testing.assert_array_equal(*bits)


def test_the_bits_of_a_token_do_not_depend_on_the_others() -> None:
    arrays, options = make_call(SMALL[2])
    whole = simulate(arrays, options)
    parts, k_pages, v_pages, *by_token, norms = arrays
    alone = [parts[:, 1:], k_pages, v_pages, *(one[1:] for one in by_token), norms]
    found = simulate(alone, options)
    np.testing.assert_array_equal(found[0], whole[0][1:])
    place = (int(by_token[2][1]), slice(None), int(by_token[3][1]))
    for one, other in zip(found[1:], whole[1:], strict=True):
        np.testing.assert_array_equal(one[place], other[place])


def call(**changes: Any) -> tuple[dict[str, Any], dict[str, Any], int]:
    given = {"heads": 32, "kv_heads": 8, "size": 128, "pairs": 64, "dtype": "bfloat16"} | changes
    pages = (9, given["kv_heads"], 128, given["size"])
    shapes = {"cos": (1, given["pairs"]), "k_pages": pages, "v_pages": pages}
    return shapes, dict.fromkeys(("k_pages", "v_pages"), given["dtype"]), given["heads"]


@pytest.mark.parametrize(
    ("changes", "platform", "reason"),
    [
        ({}, HOPPER, None),
        ({"size": 256, "pairs": 128, "heads": 16}, HOPPER, None),
        ({"dtype": "int8"}, HOPPER, "k_pages are int8; it takes bfloat16"),
        ({"size": 96, "pairs": 48}, HOPPER, "heads have 96 values"),
        ({"pairs": 32}, HOPPER, "32 pairs of 128 values are turned; it turns all"),
        ({"heads": 28, "kv_heads": 4}, HOPPER, None),
        ({"heads": 7, "kv_heads": 1}, HOPPER, "7 and twice 1 heads"),
        ({"heads": 64}, HOPPER, None),
        ({"heads": 66, "kv_heads": 2}, HOPPER, "66 and twice 2 heads"),
        ({}, Platform(kind="cpu"), "this is a cpu"),
    ],
)
def test_why_not(changes: dict[str, Any], platform: Platform, reason: str | None) -> None:
    shapes, dtypes, num_heads = call(**changes)
    found = mosaic.why_not(shapes, dtypes, platform, num_heads=num_heads)
    assert found is None if reason is None else reason in str(found)
    for wanted in ("auto", "mosaic"):  # nobody is refused: the reference is two steps for XLA
        chosen = resolve_implementation(
            wanted, shapes, dtypes, num_heads=num_heads, platform=platform
        )
        assert chosen == ("reference" if reason else "mosaic")


def test_what_it_cannot_do_is_refused_with_the_reason() -> None:
    arrays, options = make_call(Case(name="odd", num_tokens=1, num_kv_heads=1))
    with pytest.raises(ValueError, match="cannot use 'mosaic'.*8 and twice 1 heads"):
        mosaic.rotate_write(*arrays, **options)
