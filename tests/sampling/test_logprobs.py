"""What is reported beside a token: log-probabilities, ranks and the best, raw or processed."""

from typing import Any

import jax
import numpy as np
import pytest

from jaxinfer.sampling.draw import score
from tests.sampling import reference
from tests.sampling.draws import LOGITS, draw_rows, draw_seated, random_logits, seated_program
from tests.sampling.rows import seats, unpacked


def test_logprobs_are_raw_and_within_1e_5_of_float64() -> None:
    """Promise 5, BB-26: whatever temperature and top_k, the raw log-softmax is reported."""
    logits = random_logits(40, scale=5.0)
    ways = ((0.0, 0), (0.1, 0), (1.0, 1), (1.0, 0), (2.0, 50))
    rows = [{"temperature": t, "top_k": k, "logprobs": 20} for t, k in ways * 8]
    found = draw_rows(logits, rows, np.arange(40))
    exact = reference.log_softmax(logits)
    np.testing.assert_allclose(found.logprobs, exact[np.arange(40), found.tokens], atol=1e-5)
    best = np.argsort(-exact, axis=-1, kind="stable")[:, :20]
    np.testing.assert_array_equal(found.best_ids, best)
    np.testing.assert_allclose(
        found.best_logprobs, np.take_along_axis(exact, best, axis=-1), atol=1e-5
    )
    assert (found.logprobs <= 0).all() and (found.best_logprobs <= 0).all()


def test_logprobs_do_not_depend_on_the_batch() -> None:
    logits = random_logits(40)
    rows: list[dict[str, Any]] = [{"logprobs": 5, "seed": i} for i in range(40)]
    whole = draw_rows(logits, rows, np.arange(40))
    for first in (0, 13, 38):
        few = draw_rows(logits[first : first + 2], rows[first : first + 2], [first, first + 1])
        for name in ("tokens", "logprobs", "best_ids", "best_logprobs"):
            np.testing.assert_array_equal(
                getattr(few, name), getattr(whole, name)[first : first + 2]
            )


def test_a_vocabulary_under_twenty_is_padded_with_minus_infinity() -> None:
    found = draw_rows(np.tile(LOGITS, (3, 1)), [{"logprobs": 20}] * 3, [0, 1, 2])
    assert found.best_ids[0, :6].tolist() == [3, 0, 1, 4, 2, 5]
    assert (found.best_logprobs[0, 6:] == -np.inf).all()


@pytest.mark.parametrize("neighbour", [{}, {"logprobs": 3}])
def test_rows_that_ask_for_nothing_report_zeros(neighbour: dict[str, Any]) -> None:
    """Whether or not one beside them asks."""
    rows = [{}, {"temperature": 0.0}, neighbour]
    found = draw_rows(np.tile(LOGITS, (3, 1)), rows, [0, 1, 2])
    for name in ("logprobs", "ranks", "best_ids", "best_logprobs"):
        assert not getattr(found, name)[:2].any(), name
    assert (found.ranks[2] > 0) == (found.logprobs[2] < 0) == bool(neighbour)


def test_a_rank_is_one_more_than_the_number_of_likelier_tokens() -> None:
    logits = np.round(2 * random_logits(40)) / 2  # ties share a rank
    rows = [{"temperature": t, "logprobs": 0, "seed": 3} for t in (0.0, 0.7, 1.0, 2.0)] * 10
    found = draw_rows(logits, rows, np.arange(40))
    own = logits[np.arange(40), found.tokens]
    np.testing.assert_array_equal(found.ranks, 1 + (logits > own[:, None]).sum(axis=-1))
    assert (found.ranks[::4] == 1).all() and found.ranks.max() > 20


@pytest.mark.parametrize("seed", range(3))
def test_processed_logprobs_are_those_of_what_was_drawn_from(seed: int) -> None:
    """Limits for every row; temperature and filters where the temperature is above 0."""
    logits = random_logits(2, scale=3.0, seed=seed)
    filters: dict[str, Any] = {"top_k": 9, "min_p": 0.01}
    limits: dict[str, Any] = {"prompt_ids": [1], "output_ids": [5, 7], "frequency_penalty": 1.5}
    bias = {"logit_bias": {int(logits[0].argmax()): -100}}
    rows: list[dict[str, Any]] = [
        {**limits, **bias, **filters, "temperature": 1.5, "logprobs": 20, "seed": seed},
        {**limits, **filters, "temperature": 0.0, "logprobs": 20},
    ]
    found = draw_seated(logits, seats(300, *rows), mode="processed")
    limited = [
        reference.limited(logits[0], **limits, **bias),
        reference.limited(logits[1], **limits),
    ]
    scores = [reference.filtered(limited[0], temperature=1.5, **filters), limited[1]]
    for row, exact in enumerate(np.log(reference.softmax(one) + 1e-300) for one in scores):
        np.testing.assert_allclose(found.logprobs[row], exact[found.tokens[row]], atol=1e-5)
        kept = np.isfinite(found.best_logprobs[row])
        assert kept.sum() == min(20, np.isfinite(scores[row]).sum())
        best = np.argsort(-exact, kind="stable")[: kept.sum()]
        np.testing.assert_array_equal(found.best_ids[row][kept], best)
        np.testing.assert_allclose(found.best_logprobs[row][kept], exact[best], atol=1e-5)
    assert found.ranks[1] == 1


def test_processed_tokens_are_the_raw_mode_s() -> None:
    logits = random_logits(40)
    rows: list[dict[str, Any]] = [
        {"temperature": t, "seed": i, "logprobs": 1, "presence_penalty": p, "output_ids": [1, 2]}
        for i, (t, p) in enumerate(((0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)) * 10)
    ]
    raw, processed = (draw_seated(logits, seats(300, *rows), mode) for mode in ("raw", "processed"))
    np.testing.assert_array_equal(raw.tokens, processed.tokens)
    plain = np.arange(40) % 4 == 0  # nothing was processed there
    assert raw.logprobs[plain].tobytes() == processed.logprobs[plain].tobytes()


def test_processed_logprobs_of_a_plain_step_are_raw() -> None:
    rows: list[dict[str, Any]] = [{"temperature": 0.0, "logprobs": 5}] * 2
    logits = random_logits(2)
    raw, processed = (
        seated_program(logits, made.rows, made.positions, made.state, made.slots, mode=mode)
        for made, mode in ((seats(300, *rows), "raw"), (seats(300, *rows), "processed"))
    )
    np.testing.assert_array_equal(raw, processed)


def test_scores_are_the_raw_logprobs_and_ranks_of_their_targets() -> None:
    logits = random_logits(8, scale=4.0)
    targets = np.arange(0, 240, 30, dtype=np.int32)
    logits[5, 17] = np.nan
    found = unpacked(jax.jit(score)(logits, targets))
    assert found.finite.tolist() == [row != 5 for row in range(8)]
    sound = np.arange(8) != 5
    exact, every = reference.log_softmax(logits[sound]), np.arange(7)
    np.testing.assert_array_equal(found.tokens, targets)
    np.testing.assert_allclose(found.logprobs[sound], exact[every, targets[sound]], atol=1e-5)
    own = logits[sound][every, targets[sound]]
    np.testing.assert_array_equal(
        found.ranks[sound], 1 + (logits[sound] > own[:, None]).sum(axis=-1)
    )
    best = np.argsort(-exact, axis=-1, kind="stable")[:, :20]
    np.testing.assert_array_equal(found.best_ids[sound], best)


def test_scores_equal_what_a_draw_reports_at_any_width() -> None:
    """Bit for bit: a prompt's log-probability and a drawn token's are the same computation."""
    logits = random_logits(40)
    drawn = draw_rows(logits, [{"logprobs": 20, "seed": i} for i in range(40)], np.arange(40))
    for first, width in ((0, 40), (7, 2), (30, 8)):
        few = slice(first, first + width)
        found = unpacked(jax.jit(score)(logits[few], drawn.tokens[few]))
        for name in ("tokens", "logprobs", "ranks", "best_ids", "best_logprobs"):
            np.testing.assert_array_equal(getattr(found, name), getattr(drawn, name)[few])
