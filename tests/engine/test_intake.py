"""Prompts and parameters to requests: seeds, limits, what only the model can check, siblings."""

from typing import Any

import pytest

from jaxinfer.config.request_options import RequestOptions
from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.engine.intake import Intake
from jaxinfer.engine.task import Task
from jaxinfer.errors import RequestError
from jaxinfer.scheduler.request import Request
from jaxinfer.text.tokenizer import Tokenizer
from tests.support.byte_tokenizer import END


def intake_of(tokenizer: Tokenizer | None, **changes: Any) -> Intake:
    settings: dict[str, Any] = {
        "vocab_size": 300,
        "max_model_len": 64,
        "tokenizer": tokenizer,
        "eos_token_ids": (END, 300, 900),
        "seed": 5,
        "max_logprobs": 20,
    }
    return Intake(**{**settings, **changes})


def take(
    intake: Intake, prompt: Any = "abc", *, scores: bool = False, **params: Any
) -> tuple[Task, Request]:
    task = intake.open_task(prompt, SamplingParams(**params), 1.5)
    return task, intake.fill(task, prompt, RequestOptions(priority=3), scores=scores)


def test_a_prompt_becomes_a_task_with_one_request(tokenizer: Tokenizer) -> None:
    task, request = take(intake_of(tokenizer), max_tokens=7)
    assert (task.request_id, task.prompt, task.prompt_ids) == ("0", "abc", [97, 98, 99])
    (completion,) = task.completions
    assert completion.request is request and request.siblings == []
    assert (request.prompt_ids, request.max_new_tokens) == ([97, 98, 99], 7)
    assert (request.arrival_s, request.options.priority) == (1.5, 3)


def test_completions_are_siblings_of_the_first(tokenizer: Tokenizer) -> None:
    """One seed, one index each; only the first reports the prompt's log-probabilities."""
    task, first = take(intake_of(tokenizer), n=3, prompt_logprobs=2, seed=8)
    requests = [completion.request for completion in task.completions]
    assert requests == [first, *first.siblings]
    assert [one.sample_index for one in requests] == [0, 1, 2]
    assert {one.seed for one in requests} == {8}
    assert [one.leader for one in requests] == [None, first, first]
    assert [one.num_prompt_logprobs for one in requests] == [2, None, None]
    assert [one.prompt_logprobs for one in requests] == [[], None, None]
    orders = [one.order for one in requests]
    assert orders == sorted(set(orders))


def test_seeds_are_drawn_in_order_and_a_refused_prompt_takes_one_too(
    tokenizer: Tokenizer,
) -> None:
    """BB-21 (vllm#51226), promise 3: what others ask for does not move a request's seed."""
    plain, other = intake_of(tokenizer), intake_of(tokenizer)
    wanted = [take(plain)[1].seed for _ in range(3)]
    assert len(set(wanted)) == 3 and all(0 <= seed < 2**63 for seed in wanted)
    found = [take(other)[1].seed]
    with pytest.raises(RequestError):
        take(other, "x" * 65)
    take(other, seed=4)
    assert [*found, wanted[1], take(other)[1].seed] == wanted
    assert take(intake_of(tokenizer, seed=6))[1].seed not in wanted


@pytest.mark.parametrize("prompt", ["x" * 65, {"prompt": "x" * 65}])
def test_a_refused_prompt_keeps_its_text(tokenizer: Tokenizer, prompt: Any) -> None:
    intake = intake_of(tokenizer)
    task = intake.open_task(prompt, SamplingParams(), 0.0)
    with pytest.raises(RequestError, match="65 tokens"):
        intake.fill(task, prompt, RequestOptions(), scores=False)
    assert task.prompt == "x" * 65
    assert intake.open_task({"prompt": 5}, SamplingParams(), 0.0).prompt is None


@pytest.mark.parametrize(
    ("length", "max_tokens", "room"),
    [(3, 5, 5), (3, None, 61), (60, 9, 4), (63, None, 1), (64, 1, 1), (64, None, 1)],
)
def test_the_room_for_output(length: int, max_tokens: int | None, room: int) -> None:
    """BB-30: a prompt of exactly max_model_len still draws one token."""
    _, request = take(intake_of(None), [7] * length, max_tokens=max_tokens)
    assert request.max_new_tokens == room


def test_a_score_needs_no_room() -> None:
    for length in (1, 64):
        _, request = take(intake_of(None), [7] * length, scores=True, prompt_logprobs=0)
        assert request.max_new_tokens == 0 and request.max_cached_tokens == length


@pytest.mark.parametrize(
    ("params", "ends", "stops"),
    [
        ({}, {END}, set()),  # ids beyond the vocabulary of 300 are left out
        ({"ignore_eos": True}, set(), set()),
        ({"stop_token_ids": [5, END]}, {5, END}, {5, END}),
        ({"stop_token_ids": [5], "ignore_eos": True}, {5}, {5}),
    ],
)
def test_what_ends_a_request(params: dict[str, Any], ends: set[int], stops: set[int]) -> None:
    _, request = take(intake_of(None), [7], **params)
    assert (request.end_ids, request.stop_ids) == (ends, stops)


def test_bad_words_become_ids_in_both_spellings(tokenizer: Tokenizer) -> None:
    _, request = take(intake_of(tokenizer), bad_words=["ab", " c"])
    assert request.bad_word_ids == ((97, 98), (32, 97, 98), (99,), (32, 99))


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"stop_token_ids": [300]}, "stop_token_ids holds 300, the vocabulary has 300"),
        ({"allowed_token_ids": [1, 400]}, "allowed_token_ids holds 400"),
        ({"logit_bias": {"301": 1}}, "logit_bias holds 301"),
        ({"bad_words": ["x" * 9]}, "9 tokens long, 8 are allowed"),
        ({"logprobs": 4}, "logprobs=4 is more than max_logprobs=3"),
        ({"prompt_logprobs": 4}, "prompt_logprobs=4 is more than max_logprobs=3"),
    ],
)
def test_what_only_the_model_can_check(
    tokenizer: Tokenizer, params: dict[str, Any], words: str
) -> None:
    with pytest.raises(RequestError, match=words):
        take(intake_of(tokenizer, max_logprobs=3), **params)


@pytest.mark.parametrize(
    ("params", "instead"),
    [({"stop": "x"}, "use stop_token_ids"), ({"bad_words": ["x"]}, "use allowed_token_ids")],
)
def test_text_needs_a_tokenizer(params: dict[str, Any], instead: str) -> None:
    with pytest.raises(RequestError, match=f"no tokenizer; {instead}"):
        take(intake_of(None), [7], **params)


def test_ids_of_bad_words_beyond_the_vocabulary_are_refused(tokenizer: Tokenizer) -> None:
    """A head with fewer rows than the tokenizer has tokens (BB-27)."""
    with pytest.raises(RequestError, match="bad_words holds 256, the vocabulary has 100"):
        take(intake_of(tokenizer, vocab_size=100), [7], bad_words=["<end>"])


def test_text_is_made_only_where_it_can_be_and_is_wanted(tokenizer: Tokenizer) -> None:
    for intake, prompt, params, wanted in (
        (intake_of(tokenizer), "a", {}, True),
        (intake_of(tokenizer), "a", {"detokenize": False}, False),
        (intake_of(None), [97], {}, False),
    ):
        task, _ = take(intake, prompt, **params)
        assert (task.completions[0].detokenizer is not None) == wanted


def test_a_conversation_that_could_not_be_rendered_is_raised_as_it_is() -> None:
    error = RequestError("no such role")
    with pytest.raises(RequestError) as raised:
        take(intake_of(None), error)
    assert raised.value is error
