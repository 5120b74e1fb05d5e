"""What the device is told of a request: which need it, and every array of it."""

from typing import Any

import numpy as np
import pytest

from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.config.step_plan import PROMPT_FLAG, SeatPlan
from jaxinfer.errors import RequestError
from jaxinfer.scheduler.seating import bad_word_ids, needs_seat, seat_plan

NEUTRAL = [
    *({}, {"temperature": 0.0}, {"top_k": 3, "top_p": 0.5, "min_p": 0.1, "seed": 3}),
    *({"stop": "a", "stop_token_ids": [3], "ignore_eos": True}, {"logprobs": 3}),
    *({"prompt_logprobs": 3}, {"logit_bias": {}}, {"bad_words": []}, {"repetition_penalty": 1}),
]
LIMITED = [
    *({"presence_penalty": -0.1}, {"frequency_penalty": 0.1}, {"repetition_penalty": 1.1}),
    *({"min_tokens": 1}, {"logit_bias": {0: 0.5}}, {"allowed_token_ids": [0]}),
    {"bad_words": ["a"]},
]


@pytest.mark.parametrize("params", NEUTRAL)
def test_requests_that_need_no_seat(params: dict[str, Any]) -> None:
    assert not needs_seat(SamplingParams(**params))


@pytest.mark.parametrize("params", LIMITED)
def test_requests_that_need_a_seat(params: dict[str, Any]) -> None:
    assert needs_seat(SamplingParams(**params))


def plan_of(
    prompt_ids: list[int],
    output_ids: list[int] | None = None,
    *,
    end_ids: frozenset[int] = frozenset(),
    words: Any = (),
    vocab_size: int = 40,
    **params: Any,
) -> SeatPlan:
    return seat_plan(
        2,
        params=SamplingParams(**params),
        end_ids=end_ids,
        bad_word_ids=words,
        prompt_ids=prompt_ids,
        output_ids=output_ids or [],
        vocab_size=vocab_size,
    )


@pytest.mark.parametrize(
    ("prompt", "output", "recent"),
    [
        ([5], [], [-2, -2, -2, -2, -2, -2, 5]),
        ([5, 6], [7], [-2, -2, -2, -2, 5, 6, 7]),
        (list(range(9)), [], [2, 3, 4, 5, 6, 7, 8]),
        (list(range(9)), [30, 31], [4, 5, 6, 7, 8, 30, 31]),
        ([1, 2], list(range(10, 20)), [13, 14, 15, 16, 17, 18, 19]),
    ],
)
def test_recent_tokens_are_the_last_of_prompt_and_output(
    prompt: list[int], output: list[int], recent: list[int]
) -> None:
    assert plan_of(prompt, output).recent.tolist() == recent


def test_seen_tokens_count_the_output_and_flag_the_prompt() -> None:
    """Also of a request that is resumed with tokens already drawn."""
    seen = plan_of([3, 3, 4], [4, 5, 5]).seen
    assert {i: seen[i] for i in np.flatnonzero(seen)} == {
        3: PROMPT_FLAG,
        4: PROMPT_FLAG + 1,
        5: 2,
    }
    assert np.flatnonzero(plan_of([3, 4]).seen).tolist() == [3, 4]


def as_ids(words: np.ndarray) -> list[int]:
    return [32 * i + bit for i, word in enumerate(words) for bit in range(32) if word >> bit & 1]


def test_ids_travel_as_bits() -> None:
    plan = plan_of([1], end_ids=frozenset({0, 31, 39}), allowed_token_ids=[2, 33, 2])
    assert as_ids(plan.ends) == [0, 31, 39] and as_ids(plan.allowed) == [2, 33]
    assert plan.ends.tolist() == [1 + 2**31, 2**7]
    assert as_ids(plan_of([1]).ends) == [] and as_ids(plan_of([1]).allowed) == list(range(40))


def test_biases_and_bad_words_are_padded() -> None:
    plan = plan_of([1], logit_bias={7: -3, 39: 200}, words=[(4,), tuple(range(8))])
    assert plan.bias_ids[:3].tolist() == [7, 39, 40] and (plan.bias_ids[2:] == 40).all()
    assert plan.bias_values[:3].tolist() == [-3, 100, 0]
    assert plan.bad_words[0].tolist() == [-1] * 7 + [4]
    assert plan.bad_words[1].tolist() == list(range(8)) and (plan.bad_words[2:] == -1).all()


@pytest.mark.parametrize("vocab_size", [31, 32, 33, 320])
def test_shapes_and_dtypes_are_the_device_s(vocab_size: int) -> None:
    plan, words = plan_of([1], vocab_size=vocab_size), -(-vocab_size // 32)
    arrays = {name: getattr(plan, name) for name in SeatPlan.__slots__ if name != "slot"}
    assert {name: (array.shape, array.dtype.name) for name, array in arrays.items()} == {
        "recent": ((7,), "int32"),
        "seen": ((vocab_size,), "int32"),
        "allowed": ((words,), "uint32"),
        "ends": ((words,), "uint32"),
        "bias_ids": ((300,), "int32"),
        "bias_values": ((300,), "float32"),
        "bad_words": ((128, 8), "int32"),
    }


def by_letter(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def by_word(text: str) -> list[int]:
    """A leading space belongs to its word: " of" is one token, "of" two."""
    return [1] if text == " of" else by_letter(text)


def test_a_word_is_spelled_with_and_without_a_space() -> None:
    """BB-25 (vllm#32557): of different lengths, too."""
    assert bad_word_ids(["of"], by_word) == ((111, 102), (1,))
    assert bad_word_ids([" of"], by_word) == ((111, 102), (1,))


def test_equal_spellings_count_once() -> None:
    assert bad_word_ids(["a", " a", "a"], by_letter) == ((97,), (32, 97))
    assert bad_word_ids([], by_letter) == ()
    assert bad_word_ids([" "], by_letter) == ((32,),)


def test_a_word_too_long_or_of_nothing_is_refused() -> None:
    """BB-25: the space counts."""
    assert len(bad_word_ids(["abcdefg"], by_letter)[1]) == 8
    with pytest.raises(RequestError, match="'abcdefgh', which is 9 tokens long, 8 are allowed"):
        bad_word_ids(["x", "abcdefgh"], by_letter)
    with pytest.raises(RequestError, match="'x', which the tokenizer gives no tokens"):
        bad_word_ids(["x"], lambda text: [])
