"""Which tokens may be drawn, against a NumPy reference at and around the boundaries."""

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.sampling.logits import filter_logits, log_softmax
from tests.sampling import reference
from tests.sampling.rows import sampling_rows

VOCAB, ROWS = 17, 4
LN = np.log(np.array([0.5, 0.25, 0.125, 0.125], np.float32))

filter_program = jax.jit(filter_logits)


def filter_one(logits: Any, **params: Any) -> np.ndarray:
    """One row's filtered logits; the program has two rows, the other draws greedily."""
    row = np.asarray(logits, np.float32)
    rows = sampling_rows(params, {"temperature": 0.0})
    return np.asarray(filter_program(np.stack([row, row]), rows))[0]


def kept(logits: Any, **params: Any) -> list[int]:
    return np.flatnonzero(filter_one(logits, **params) > -np.inf).tolist()


@pytest.mark.parametrize(
    ("top_k", "expected"),
    [(1, [3]), (2, [0, 3]), (3, [0, 3, 2]), (4, [0, 1, 2, 3]), (0, [0, 1, 2, 3])],
)
def test_top_k(top_k: int, expected: list[int]) -> None:
    assert kept([2.0, -1.0, 0.0, 3.0], top_k=top_k) == sorted(expected)


def test_ties_at_the_kth_place_stay_in() -> None:
    assert kept([1.0, 3.0, 1.0, 0.0], top_k=2) == [0, 1, 2]
    assert kept([1.0, 1.0, 1.0, 1.0], top_k=1) == [0, 1, 2, 3]


@pytest.mark.parametrize("top_k", [-1, 0, 4, 5, 9999999, 2**40])
def test_a_top_k_beyond_the_vocabulary_is_off(top_k: int) -> None:
    """BB-19 (sendnn-inference#542): 9999999 = 0 = -1, bit for bit."""
    np.testing.assert_array_equal(filter_one(LN, top_k=top_k), filter_one(LN))


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [
        *((5e-324, [0]), (1e-9, [0]), (0.4999, [0]), (0.5001, [0, 1]), (0.7499, [0, 1])),
        *((0.7501, [0, 1, 2, 3]), (0.9, [0, 1, 2, 3]), (1.0, [0, 1, 2, 3])),
    ],
)
def test_top_p_around_its_boundaries(top_p: float, expected: list[int]) -> None:
    assert kept(LN, top_p=top_p) == expected


def test_a_mass_of_exactly_top_p_is_enough() -> None:
    """exp(-ln 2) is 0.5 in float32: the first token has one half."""
    assert kept([0.0, -np.log(2), -np.log(2), -np.inf], top_p=0.5) == [0]


@pytest.mark.parametrize(
    ("min_p", "expected"),
    [
        *((0.0, [0, 1, 2, 3]), (0.2499, [0, 1, 2, 3]), (0.2501, [0, 1]), (0.4999, [0, 1])),
        *((0.5001, [0]), (1.0, [0])),
    ],
)
def test_min_p_is_relative_to_the_best(min_p: float, expected: list[int]) -> None:
    assert kept(LN, min_p=min_p) == expected


def test_min_p_of_one_keeps_all_the_best() -> None:
    assert kept([5.0, 1.0, 5.0, 4.999], min_p=1.0) == [0, 2]


def test_temperature_comes_before_min_p() -> None:
    """At temperature 2 the second is at sqrt(1/2) = 0.707 of the best, not at 0.5."""
    assert kept(LN, min_p=0.7, temperature=2.0) == [0, 1]
    assert kept(LN, min_p=0.72, temperature=2.0) == [0]


def test_top_p_counts_what_top_k_left() -> None:
    """Of the two best (0.5, 0.25) the first alone has two thirds."""
    assert kept(LN, top_k=2, top_p=0.66) == [0]
    assert kept(LN, top_p=0.66) == [0, 1]


def test_top_p_counts_what_min_p_left() -> None:
    assert kept(LN, min_p=0.3, top_p=0.66) == [0]


@pytest.mark.parametrize("temperature", [1e-2, 1e-6, 1e-30, 1e-38, 5e-324])
def test_a_tiny_temperature_leaves_the_best_and_no_nan(temperature: float) -> None:
    """BB-20 (vllm#3063): no overflow, no NaN, however small."""
    scaled = filter_one([10.0, -3.0, 0.0, 10.0], temperature=temperature)
    assert not np.isnan(scaled).any() and scaled[0] == scaled[3] == 0
    assert np.exp(scaled[1:3]).max() == 0
    for more in ({"top_p": 0.5}, {"min_p": 0.5}, {"top_k": 3, "top_p": 0.1}):
        assert not np.isnan(filter_one([10.0, -3.0, 0.0, 10.0], temperature=1e-38, **more)).any()


def test_excluded_logits_stay_excluded() -> None:
    """A token at -inf is never let in, not even where top_k asks for more than there are."""
    logits = [-np.inf, 1.0, -np.inf, 0.0]
    for params in ({}, {"top_k": 3}, {"top_p": 0.999}, {"min_p": 1e-9}, {"temperature": 2.0}):
        assert kept(logits, **params) == [1, 3]


def test_values_are_the_scaled_logits() -> None:
    scaled = filter_one([1.0, 2.0, 3.0, 4.0], temperature=0.5, top_k=3)
    np.testing.assert_allclose(scaled, [-np.inf, -4.0, -2.0, 0.0])


PARAMS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.25, 0.5, 1.0, 2.0]),
        "top_k": st.sampled_from([-1, 0, 1, 2, 5, 16, 17, 18]),
        "top_p": st.sampled_from([1e-6, 0.1, 0.33, 0.6, 0.9, 0.99, 1.0]),
        "min_p": st.sampled_from([0.0, 0.001, 0.03, 0.11, 0.4, 1.0]),
    }
)
# A coarse grid: ties are common, and no level lies on a min_p threshold but that of 1.
LOGITS = st.lists(
    st.integers(-12, 12).map(lambda n: n / 2) | st.just(-np.inf), min_size=VOCAB, max_size=VOCAB
).filter(lambda row: max(row) > -np.inf)


@settings(max_examples=200, derandomize=True, deadline=None, database=None)
@given(st.lists(st.tuples(LOGITS, PARAMS), min_size=ROWS, max_size=ROWS))
def test_any_combination_equals_the_reference(cases: list[tuple[list[float], Any]]) -> None:
    logits = np.array([row for row, _ in cases], np.float32)
    rows = sampling_rows(*(params for _, params in cases))
    found = np.asarray(filter_program(logits, rows))
    for row, params, ours in zip(logits, (p for _, p in cases), found, strict=True):
        around = (params["top_p"] - 1e-6, params["top_p"] + 1e-6)
        # Where the mass lies within rounding of top_p, both neighbours are right.
        theirs = [reference.filtered(row, **{**params, "top_p": p}) for p in around]
        assert any(np.allclose(ours, one, rtol=1e-6, atol=1e-6) for one in theirs), params


WIDE = 700  # more tokens than there are candidates


def keep_wide(logits: np.ndarray, *params: dict[str, Any]) -> list[np.ndarray]:
    """Rows' kept tokens, with as many rows as parameters."""
    rows = np.broadcast_to(logits, (len(params), WIDE)).astype(np.float32)
    return [row > -np.inf for row in np.asarray(filter_program(rows, sampling_rows(*params)))]


@pytest.mark.parametrize("shape", ["flat", "peaked", "tied"])
@pytest.mark.parametrize(
    "params",
    [
        *({"top_k": k} for k in (1, 2, 255, 256, 257, 300, 699, 700, 701)),
        *({"top_p": p} for p in (1e-6, 0.1, 0.5, 0.9, 0.999)),
        *({"top_k": k, "top_p": p} for k in (50, 256, 400) for p in (0.3, 0.95)),
    ],
)
def test_thresholds_inside_and_beyond_the_candidates(shape: str, params: dict[str, Any]) -> None:
    """The kept tokens are the reference's, and those of a step whose other rows search longer."""
    order = np.random.default_rng(2).permutation(WIDE)
    logits = {
        "flat": order / 1000,
        "peaked": -2 * np.log1p(order),
        "tied": np.minimum(order // 40, 12) / 4,
    }[shape].astype(np.float32)
    plain = {"temperature": 1.0}
    alone, _ = keep_wide(logits, params, plain)
    other = [{"top_k": 600, "top_p": 0.97}, {"top_p": 0.99}]
    beside = keep_wide(logits, plain, other[0], params, other[1])[2]
    np.testing.assert_array_equal(alone, beside)
    around = (params.get("top_p", 1.0) + slack for slack in (-1e-6, 0, 1e-6))
    exact = [reference.filtered(logits, **{**params, "top_p": p}) > -np.inf for p in around]
    assert any((alone == kept).all() for kept in exact)


def test_a_guess_that_is_wrong_changes_nothing() -> None:
    """Many equal weights: sums over candidates and over all tokens round differently."""
    for seed in range(20):
        draw = np.random.default_rng(seed)
        logits = np.log(draw.integers(1, 4, WIDE)).astype(np.float32)
        logits[draw.integers(WIDE, size=200)] = 5
        alone, _ = keep_wide(logits, {"top_p": 0.7}, {})
        beside = keep_wide(logits, {"top_p": 0.9999}, {"top_k": 500}, {"top_p": 0.7}, {})[2]
        np.testing.assert_array_equal(alone, beside)


def test_a_row_s_bits_do_not_depend_on_its_neighbours() -> None:
    logits = 4 * np.random.default_rng(0).normal(size=(33, 50)).astype(np.float32)
    params = [
        {"temperature": 0.2 + i / 20, "top_k": i % 7, "top_p": 1 - (i % 3) / 5, "min_p": i / 100}
        for i in range(33)
    ]
    together = np.asarray(filter_program(logits, sampling_rows(*params)))
    for row in range(33):
        pair = [row, (row + 5) % 33]
        alone = filter_program(logits[pair], sampling_rows(*(params[i] for i in pair)))
        np.testing.assert_array_equal(np.asarray(alone)[0], together[row])


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
@pytest.mark.parametrize("vocab", [3, 320, 49152])
def test_log_softmax_equals_float64(vocab: int, scale: float) -> None:
    """Promise 5: within 1e-5 of float64 (relative, where the values themselves are large)."""
    logits = np.random.default_rng(vocab).normal(size=(2, vocab)).astype(np.float32)
    logits *= np.float32(scale)
    ours = np.asarray(jax.jit(log_softmax)(logits))
    np.testing.assert_allclose(ours, reference.log_softmax(logits), rtol=1e-6, atol=1e-5)
    assert (ours <= 0).all()


def test_log_softmax_keeps_its_bits_at_any_width() -> None:
    logits = np.random.default_rng(1).normal(size=(64, 1000)).astype(np.float32)
    program = jax.jit(log_softmax)
    whole = np.asarray(program(logits))
    for width in (1, 7, 32):
        np.testing.assert_array_equal(np.asarray(program(logits[:width])), whole[:width])
