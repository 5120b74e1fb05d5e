"""Distances between predictions, against the textbook's formula and at its edges."""

import numpy as np
import pytest

from jaxinfer.quantize import divergence
from jaxinfer.quantize.divergence import divergences, next_token_nats, same_best


def random_logits(rows: int, seed: int, scale: float = 3.0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return (scale * random.standard_normal((rows, 50))).astype(np.float32)


def softmax(rows: np.ndarray) -> np.ndarray:
    wide = rows.astype(np.float64)
    weights = np.exp(wide - wide.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("elements", [1, 120, 10**6])
def test_a_divergence_is_the_textbook_s(monkeypatch: pytest.MonkeyPatch, elements: int) -> None:
    """However many rows are taken at once."""
    monkeypatch.setattr(divergence, "_BLOCK_ELEMENTS", elements)
    one, other = random_logits(7, 0), random_logits(7, 1)
    p, q = softmax(one), softmax(other)
    expected = (p * (np.log(p) - np.log(q))).sum(axis=-1)
    np.testing.assert_allclose(divergences(one, other), expected, rtol=1e-12)
    targets = np.arange(7) * 3
    nats = -np.log(p)[np.arange(7), targets]
    np.testing.assert_allclose(next_token_nats(one, targets), nats, rtol=1e-12)


def test_equal_rows_are_no_distance_apart_and_a_shift_is_none() -> None:
    rows = random_logits(4, 2, scale=40.0)
    assert divergences(rows, rows).max() == 0
    assert divergences(rows, rows + np.float32(8)).max() < 1e-5
    assert divergences(rows, -rows).min() > 1


def test_it_has_a_direction() -> None:
    """A model that is sure of one token, judged by one that is not."""
    sure, unsure = np.zeros((1, 2), np.float32), np.zeros((1, 2), np.float32)
    sure[0, 0] = 20
    assert divergences(sure, unsure)[0] == pytest.approx(np.log(2), rel=1e-6)
    assert divergences(unsure, sure)[0] == pytest.approx(10 - np.log(2), rel=1e-6)


def test_large_logits_do_not_overflow_and_nan_is_nan() -> None:
    rows = np.array([[1e5, 0, -1e5], [np.nan, 0, 0], [np.inf, 0, 0]], np.float32)
    nats = next_token_nats(rows, np.array([1, 0, 1]))
    assert nats[0] == 1e5 and np.isnan(nats[1:]).all()


def test_the_best_token_of_equals_is_the_first() -> None:
    one = np.array([[0, 1, 1], [2, 1, 0]], np.float32)
    other = np.array([[0, 5, 4], [0, 1, 0]], np.float32)
    assert same_best(one, other).tolist() == [True, False]
