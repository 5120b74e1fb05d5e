"""Limits and penalties of a request against a NumPy reference, their order, and whose they are.

A program is compiled for each shape; rows and slots are taken by `tests.sampling.rows.seats`.
"""

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.sampling.limits import limit_logits
from tests.sampling import reference
from tests.sampling.rows import Seats, seats

VOCAB, ROWS = 37, 4
LEVELS = np.random.default_rng(0).permutation(VOCAB).astype(np.float32) / 4 - 4

limit_program = jax.jit(limit_logits)


def run(logits: np.ndarray, made: Seats) -> np.ndarray:
    return np.asarray(limit_program(logits, made.rows, made.positions, made.state, made.slots))


def limit_one(logits: Any = LEVELS, **row: Any) -> np.ndarray:
    """One row's logits; the program has two rows, the other is not seated."""
    values = np.asarray(logits, np.float32)
    return run(np.stack([values, values]), seats(VOCAB, row, {}))[0]


def banned(**row: Any) -> list[int]:
    return np.flatnonzero(limit_one(**row) == -np.inf).tolist()


IDS = st.integers(0, VOCAB - 1)
FEW = st.lists(IDS, max_size=6)
WORDS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=8), max_size=5)
REQUESTS = st.fixed_dictionaries(
    {"prompt_ids": st.lists(st.integers(0, 5), min_size=1, max_size=9)},
    optional={
        "output_ids": st.lists(st.integers(0, 5), max_size=9),
        "end_ids": FEW.map(tuple),
        "min_tokens": st.sampled_from([0, 1, 2, 3, 9, 10]),
        "bad_word_ids": WORDS,
        "allowed_token_ids": st.lists(IDS, min_size=1, max_size=8),
        "logit_bias": st.dictionaries(IDS, st.sampled_from([-100, -1.5, 0.25, 3, 100]), max_size=9),
        "repetition_penalty": st.sampled_from([0.01, 0.5, 1.0, 1.3, 2.0, 50.0]),
        "presence_penalty": st.sampled_from([-2, -0.3, 0, 0.7, 2]),
        "frequency_penalty": st.sampled_from([-2, -0.3, 0, 0.7, 2]),
    },
)
LOGITS = st.lists(st.integers(-20, 20).map(lambda n: n / 4), min_size=VOCAB, max_size=VOCAB)


@settings(max_examples=200, derandomize=True, deadline=None, database=None)
@given(st.lists(st.tuples(LOGITS, REQUESTS), min_size=ROWS, max_size=ROWS))
def test_any_request_equals_the_reference(cases: list[tuple[list[float], Any]]) -> None:
    """Promise 8: also around zero, for repeated tokens, and for tokens of both sets."""
    logits = np.array([row for row, _ in cases], np.float32)
    found = run(logits, seats(VOCAB, *({"max_tokens": None, **row} for _, row in cases)))
    for row, (_, case), ours in zip(logits, cases, found, strict=True):
        theirs = reference.limited(row, **case)
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-5, err_msg=str(case))


def test_the_reference_sees_a_difference() -> None:
    row = {"prompt_ids": [1, 2], "output_ids": [2, 3], "presence_penalty": 0.5}
    ours = limit_one(**row)
    assert not np.allclose(ours, reference.limited(LEVELS, **{**row, "presence_penalty": 0.51}))
    assert not np.allclose(ours, reference.limited(LEVELS, **{**row, "output_ids": [3]}))


def test_presence_and_frequency_see_the_output_alone() -> None:
    """BB-28 (vllm-metal#69, vllm#1577): nothing of a prompt changes the first step."""
    row = {"prompt_ids": [1, 1, 1, 2], "presence_penalty": 2, "frequency_penalty": 2}
    np.testing.assert_array_equal(limit_one(**row), LEVELS)
    changed = limit_one(**row, output_ids=[1, 3, 3]) - LEVELS
    assert {i: changed[i] for i in np.flatnonzero(changed)} == {1: -4, 3: -6}


def test_repetition_sees_the_prompt_and_each_token_once() -> None:
    """BB-28 (TRT-LLM#5623): at the first step already, once for three occurrences."""
    logits = np.ones(VOCAB, np.float32)
    logits[[2, 4]] = [-1, 0]
    row = {"prompt_ids": [1, 1, 1, 2, 4], "repetition_penalty": 2.0}
    changed = limit_one(logits, **row, output_ids=[1, 5])
    assert changed[[1, 2, 3, 4, 5]].tolist() == [0.5, -2, 1, 0, 0.5]


@pytest.mark.parametrize("penalty", [1e-320, 1e-38, 1e-30, 1e30, 1e300])
def test_an_extreme_repetition_penalty_gives_numbers(penalty: float) -> None:
    limited = limit_one(prompt_ids=list(range(VOCAB)), repetition_penalty=penalty)
    assert np.isfinite(limited).all()
    assert (limited * np.sign(LEVELS) >= 0).all()


@pytest.mark.parametrize("out", range(4))
def test_nothing_ends_before_min_tokens(out: int) -> None:
    """BB-22: with 2 the first and second token may not end it, the third may."""
    row = {"end_ids": (3, 36), "min_tokens": 2, "output_ids": [7] * out}
    assert banned(**row) == ([3, 36] if out < 2 else [])


def test_a_bad_word_is_banned_at_its_last_token_after_the_others() -> None:
    """BB-25 (TRT-LLM#15706): only the last, only after its prefix; one of one token always."""
    words = [[4], [5, 6], [7, 8, 9], [7, 7, 1]]
    assert banned(prompt_ids=[1], bad_word_ids=words) == [4]
    assert banned(prompt_ids=[1], output_ids=[5], bad_word_ids=words) == [4, 6]
    assert banned(prompt_ids=[1], output_ids=[7, 8], bad_word_ids=words) == [4, 9]
    assert banned(prompt_ids=[1], output_ids=[8, 7], bad_word_ids=words) == [4]


def test_a_bad_word_may_begin_in_the_prompt() -> None:
    assert banned(prompt_ids=[1, 7], output_ids=[8], bad_word_ids=[[7, 8, 9]]) == [9]
    assert banned(prompt_ids=[7, 8], bad_word_ids=[[7, 8, 9]]) == [9]
    assert banned(prompt_ids=[8], bad_word_ids=[[7, 8, 9]]) == []


def test_a_bad_word_of_eight_tokens_needs_all_seven_before() -> None:
    word = list(range(10, 18))
    assert banned(prompt_ids=[1, *word[:-1]], bad_word_ids=[word]) == [17]
    assert banned(prompt_ids=[1, 9, *word[1:-1]], bad_word_ids=[word]) == []
    assert banned(prompt_ids=word[1:-1], bad_word_ids=[word]) == []


def test_the_order_of_the_limits() -> None:
    """Allowed ids before bad words before bias before min_tokens and penalties."""
    every = {"allowed_token_ids": [1, 2, 3], "bad_word_ids": [[2]], "end_ids": (3,)}
    row = {**every, "min_tokens": 1, "logit_bias": {1: -3, 2: 100, 3: 100, 4: 100}}
    limited = limit_one(np.ones(VOCAB), prompt_ids=[1], repetition_penalty=2.0, **row)
    # The bias came before the penalty: 1 - 3 is negative, so it is times 2.
    assert limited[1] == -4 and np.flatnonzero(limited > -np.inf).tolist() == [1]


@pytest.mark.parametrize(
    ("row", "left"),
    [
        ({"allowed_token_ids": [5, 6], "bad_word_ids": [[5], [6]]}, [5, 6]),
        ({"allowed_token_ids": [5], "min_tokens": 1, "end_ids": (5,)}, [5]),
        (
            {"bad_word_ids": [[5]], "allowed_token_ids": [5, 6], "min_tokens": 1, "end_ids": (6,)},
            [6],
        ),
        ({"bad_word_ids": [[i] for i in range(VOCAB)]}, list(range(VOCAB))),
        ({"logit_bias": {5: -1e9}, "allowed_token_ids": [5]}, [5]),
    ],
)
def test_a_ban_that_would_leave_nothing_is_passed_over(row: Any, left: list[int]) -> None:
    """Never NaN, and never a token that is not allowed."""
    limited = limit_one(**row)
    assert np.flatnonzero(limited > -np.inf).tolist() == left and not np.isnan(limited).any()


def test_a_row_that_is_not_seated_keeps_every_bit() -> None:
    """Its slot is poison (NaN biases, garbage ids); neighbours make the step do the work."""
    plain: dict[str, Any] = {"prompt_ids": [1, 2]}
    made = seats(VOCAB, plain, {"bad_word_ids": [[4]]}, plain, {"min_tokens": 3, "end_ids": (1,)})
    logits = np.stack([LEVELS, LEVELS, -LEVELS, LEVELS])
    found = run(logits, made)
    for row in (0, 2):
        assert found[row].tobytes() == logits[row].tobytes()
    assert np.flatnonzero(found[1] == -np.inf).tolist() == [4]


def test_a_seated_row_takes_nothing_of_an_earlier_request() -> None:
    """All of the slot is written: with neutral limits next to one penalty nothing is banned."""
    assert banned(prompt_ids=[1], presence_penalty=0.5) == []


def test_a_step_without_seated_rows_keeps_every_bit() -> None:
    logits = np.stack([LEVELS, -LEVELS])
    assert run(logits, seats(VOCAB, {}, {})).tobytes() == logits.tobytes()


def heavy_row(seed: int) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    return {
        "prompt_ids": draw.integers(0, 40, 9).tolist(),
        "output_ids": draw.integers(0, 40, 20).tolist(),
        "bad_word_ids": [draw.integers(0, 40, n).tolist() for n in (1, 1, 2)],
        "logit_bias": {int(i): float(draw.normal()) for i in draw.integers(0, 99, 20)},
        "repetition_penalty": draw.uniform(0.5, 2),
        "presence_penalty": draw.uniform(-2, 2),
        "frequency_penalty": draw.uniform(-2, 2),
    }


def test_a_row_s_bits_do_not_depend_on_the_rows_beside_it() -> None:
    """With 2, 8 and 32 rows, and whether its neighbours are seated or not."""
    vocab, width = 300, 32
    logits = 4 * np.random.default_rng(1).normal(size=(width, vocab)).astype(np.float32)
    rows = [heavy_row(seed) for seed in range(width)]
    whole = run(logits, seats(vocab, *rows))
    for count in (2, 8):
        few = run(logits[:count], seats(vocab, *rows[:count], num_slots=width + 1))
        assert few.tobytes() == whole[:count].tobytes()
    every_other = [row if i % 2 else {} for i, row in enumerate(rows)]
    found = run(logits, seats(vocab, *every_other))
    assert found[1::2].tobytes() == whole[1::2].tobytes()
    assert found[0::2].tobytes() == logits[0::2].tobytes()
