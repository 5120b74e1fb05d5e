"""One task's text and output: stop strings, EOS, deltas that join, log-probabilities, times."""

import math
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models

from jaxinfer.engine.outputs import RequestOutput
from jaxinfer.engine.task import Completion, Task
from jaxinfer.scheduler.request import Request, TokenLogprobs
from jaxinfer.text.detokenize import IncrementalDetokenizer
from jaxinfer.text.tokenizer import Tokenizer
from tests.support.byte_tokenizer import END
from tests.support.records import request


def completion_of(one: Request, tokenizer: Tokenizer | None) -> Completion:
    if tokenizer is None:
        return Completion(request=one, detokenizer=None)
    detokenizer = IncrementalDetokenizer(
        tokenizer,
        prompt_ids=one.prompt_ids,
        stop_strings=one.params.stop_strings,
        include_stop_str_in_output=one.params.include_stop_str_in_output,
        skip_special_tokens=one.params.skip_special_tokens,
    )
    return Completion(request=one, detokenizer=detokenizer)


def task_of(*completions: Completion, **fields: Any) -> Task:
    one = completions[0].request
    return Task(
        **{
            "request_id": "0",
            "prompt": None,
            "prompt_ids": one.prompt_ids,
            "params": one.params,
            "arrival_s": 0.0,
            "completions": list(completions),
            **fields,
        }
    )


def play(
    tokenizer: Tokenizer | None, text: str, *after: int, max_new_tokens: int = 99, **params: Any
) -> tuple[RequestOutput, list[str]]:
    """The output and deltas of a request that draws the bytes of `text`, then `after`."""
    one = request(max_new_tokens=max_new_tokens, end_ids=(END,), **params)
    completion = completion_of(one, tokenizer)
    task = task_of(completion)
    texts, ids = [], []
    for token in (*text.encode(), *after):
        one.accept_token(token)
        delta = task.delta(completion, completion.advance())
        texts.append(delta.text)
        ids += delta.token_ids
        if one.is_finished:
            break
    output = task.output(tokenizer)
    assert "".join(texts) == output.outputs[0].text and ids == output.outputs[0].token_ids
    assert output.finished == one.is_finished == (delta.finish_reason is not None)
    return output, texts


def ending(output: RequestOutput) -> tuple[str, str | None, Any]:
    (one,) = output.outputs
    return one.text, one.finish_reason, one.stop_reason


def test_eos_ends_the_text_and_is_not_in_it(tokenizer: Tokenizer) -> None:
    output, _ = play(tokenizer, "hello", END)
    assert ending(output) == ("hello", "stop", None)
    assert output.outputs[0].token_ids == [*b"hello", END]


@pytest.mark.parametrize(
    ("include", "skip", "text"),
    [(False, True, "hi"), (False, False, "hi"), (True, True, "hi"), (True, False, "hi<end>")],
)
def test_eos_is_shown_only_where_both_are_asked(
    tokenizer: Tokenizer, include: bool, skip: bool, text: str
) -> None:
    options = {"include_stop_str_in_output": include, "skip_special_tokens": skip}
    assert ending(play(tokenizer, "hi", END, **options)[0])[0] == text


@pytest.mark.parametrize(
    ("stop", "text", "found"),
    [("h", "", "h"), ("lo w", "hel", "lo w"), (["world", "wor"], "hello ", "wor")],
)
def test_stop_strings_never_leak(tokenizer: Tokenizer, stop: Any, text: str, found: str) -> None:
    """BB-23 (vllm#3672)."""
    output, texts = play(tokenizer, "hello world", END, stop=stop)
    assert ending(output) == (text, "stop", found)
    assert all(piece in text for piece in texts)
    if stop == "h":
        assert output.outputs[0].token_ids == [ord("h")]


def test_a_stop_string_stays_where_it_is_asked_for(tokenizer: Tokenizer) -> None:
    """BB-23: with include_stop_str_in_output."""
    output, _ = play(tokenizer, "hello world", stop="lo w", include_stop_str_in_output=True)
    assert ending(output) == ("hello w", "stop", "lo w")


def test_a_stop_id_costs_no_visible_character(tokenizer: Tokenizer) -> None:
    """BB-23: stop_token_ids [256]."""
    one = request(max_new_tokens=9, stop_ids=(END,))
    completion = completion_of(one, tokenizer)
    for token in (*b"ab", END):
        one.accept_token(token)
        completion.advance()
    assert completion.detokenizer is not None and completion.detokenizer.text == "ab"
    assert (one.finish_reason, one.stop_reason) == ("stop", END)


def test_a_special_token_s_text_stops(tokenizer: Tokenizer) -> None:
    """BB-23: the text of a special token as a stop string, though it is skipped."""
    one = request(max_new_tokens=9, stop="<end>")  # EOS ignored
    completion = completion_of(one, tokenizer)
    for token in (*b"ab", END):
        one.accept_token(token)
        completion.advance()
    assert (one.finish_reason, one.stop_reason) == ("stop", "<end>")


def test_a_stop_string_in_the_last_token_wins_over_the_length(tokenizer: Tokenizer) -> None:
    output, _ = play(tokenizer, "abcd", max_new_tokens=4, stop="cd")
    assert ending(output) == ("ab", "stop", "cd")


def test_what_was_held_back_comes_with_the_end(tokenizer: Tokenizer) -> None:
    output, texts = play(tokenizer, "abcd", max_new_tokens=4, stop="cdefg")
    assert ending(output) == ("abcd", "length", None)
    assert texts[:3] == ["", "", ""] and texts[3] == "abcd"


def test_characters_are_never_split(tokenizer: Tokenizer) -> None:
    """BB-24 (vllm#44620): bytes of a character come as one delta."""
    output, texts = play(tokenizer, "日é😀 ZZZ", END, stop="ZZZ")
    assert ending(output) == ("日é😀 ", "stop", "ZZZ")
    assert not any("\ufffd" in piece for piece in texts)


def test_an_unfinished_character_shows_at_the_end(tokenizer: Tokenizer) -> None:
    """BB-24: max_tokens after two of three bytes."""
    output, texts = play(tokenizer, "a日", max_new_tokens=3)
    assert ending(output) == ("a\ufffd", "length", None) and texts == ["a", "", "\ufffd"]


@pytest.mark.parametrize(
    ("stop", "min_tokens", "wanted"),
    [
        ("b", 0, ("a", "stop", "b")),
        ("b", 1, ("a", "stop", "b")),  # the second token is looked at
        ("b", 2, ("abcd", "length", None)),
        ("b", 4, ("abcd", "length", None)),
        ("bcd", 3, ("a", "stop", "bcd")),  # it may begin before, it must end after
    ],
)
def test_stop_strings_count_once_min_tokens_are_out(
    tokenizer: Tokenizer, stop: str, min_tokens: int, wanted: tuple
) -> None:
    """BB-22 (vllm#21987)."""
    output, _ = play(tokenizer, "abcd", max_new_tokens=4, stop=stop, min_tokens=min_tokens)
    assert ending(output) == wanted


def test_a_second_stop_string_ends_the_text_after_min_tokens(tokenizer: Tokenizer) -> None:
    """BB-22: the first is part of the text."""
    for include, text in ((False, "abca"), (True, "abcab")):
        output, _ = play(
            tokenizer,
            "abcabc",
            stop="b",
            min_tokens=3,
            include_stop_str_in_output=include,
        )
        assert ending(output) == (text, "stop", "b")


def test_a_timeout_ends_a_row_and_keeps_what_came(tokenizer: Tokenizer) -> None:
    one = request(max_new_tokens=9, stop="xyz")
    completion = completion_of(one, tokenizer)
    task = task_of(completion)
    for token in b"abc":
        one.accept_token(token)
        task.delta(completion, completion.advance())
    one.finish_reason, one.stop_reason = "abort", "timeout"
    delta = task.delta(completion, completion.flush())
    assert (delta.text, delta.token_ids, delta.finish_reason) == ("bc", [], "abort")
    output = task.output(tokenizer)
    assert ending(output) == ("abc", "abort", "timeout")
    assert output.finished and output.error is None


def test_without_text_there_are_ids(tokenizer: Tokenizer) -> None:
    output, texts = play(None, "ab", END)
    assert ending(output) == ("", "stop", None)
    assert output.outputs[0].token_ids == [97, 98, END] and set(texts) == {""}


def test_an_error_ends_the_row_and_keeps_what_came(tokenizer: Tokenizer) -> None:
    one = request(max_new_tokens=9)
    completion = completion_of(one, tokenizer)
    task = task_of(completion)
    one.accept_token(97)
    task.delta(completion, completion.advance())
    one.finish_reason, one.error = "error", "NaN somewhere"
    delta = task.delta(completion, completion.advance())
    assert (delta.text, delta.token_ids, delta.error) == ("", [], "NaN somewhere")
    output = task.output(tokenizer)
    assert output.finished and output.error == "NaN somewhere" and ending(output)[0] == "a"


def test_a_refused_task_is_a_row_with_its_error() -> None:
    task = Task(
        request_id="0",
        prompt=None,
        prompt_ids=[],
        params=request().params,
        arrival_s=1.0,
        error="too long",
    )
    output = task.output(None)
    assert output.finished and output.error == "too long"
    assert [one.finish_reason for one in output.outputs] == ["error"]
    assert output.metrics.e2e_latency_s is None and output.metrics.num_generation_tokens == 0


def test_logprobs_by_id_with_the_drawn_one_always_there(tokenizer: Tokenizer) -> None:
    """BB-26 (vllm#9453): k entries, one more where the drawn one is not among them."""
    one = request(max_new_tokens=2, logprobs=2)
    best = ((97, -0.5), (98, -1.0))
    for token, value in ((98, -1.0), (99, -7.0)):
        one.accept_token(token)
        one.logprobs.append(TokenLogprobs(token_id=token, logprob=value, rank=40, best=best))
    task = task_of(completion_of(one, tokenizer))
    (out,) = task.output(tokenizer).outputs
    assert out.logprobs is not None and out.cumulative_logprob == -8.0
    first, second = out.logprobs
    assert [(i, x.rank, x.decoded_token) for i, x in first.items()] == [(97, 1, "a"), (98, 2, "b")]
    assert list(second) == [97, 98, 99]
    assert (second[99].logprob, second[99].rank) == (-7.0, 40)


def test_the_text_of_a_token_keeps_its_leading_space() -> None:
    """A SentencePiece tokenizer strips the first space of a text, not that of a token in it."""
    backend = tokenizers.Tokenizer(models.BPE({"▁": 0, "a": 1, "▁a": 2}, [("▁", "a")]))
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer = Tokenizer(backend)
    assert tokenizer.decode([2]) == "a"
    one = request(max_new_tokens=1, logprobs=1)
    one.accept_token(2)
    one.logprobs.append(TokenLogprobs(token_id=2, logprob=-0.5, rank=1, best=((2, -0.5),)))
    task = task_of(completion_of(one, tokenizer))
    (out,) = task.output(tokenizer).outputs
    assert out.logprobs is not None and out.logprobs[0][2].decoded_token == " a"


def test_times(tokenizer: Tokenizer) -> None:
    """TPOT is (end to end - TTFT) / (tokens - 1), of the longest completion."""
    requests = [request(4, sample_index=i) for i in range(2)]
    for one, tokens, first in zip(requests, (5, 2), (11.0, 12.0), strict=True):
        one.output_ids = [97] * tokens
        one.admitted_s, one.first_token_s = 10.5, first
    task = task_of(*(completion_of(one, None) for one in requests), arrival_s=10.0)
    running = task.output(tokenizer).metrics
    assert running.time_to_first_token_s == 1.0 and running.e2e_latency_s is None
    for one, end in zip(requests, (19.0, 14.0), strict=True):
        one.finish_reason, one.finished_s = "length", end
    metrics = task.output(tokenizer).metrics
    assert metrics.e2e_latency_s == 9.0 and metrics.time_per_output_token_s == 2.0
    assert metrics.queue_time_s == 0.5
    assert (metrics.prefill_time_s, metrics.decode_time_s) == (0.5, 8.0)
    assert (metrics.num_prompt_tokens, metrics.num_generation_tokens) == (4, 7)
    assert (metrics.num_cached_tokens, metrics.num_preemptions) == (0, 0)


def test_what_a_cache_held_and_how_often_it_was_preempted() -> None:
    """Completions after the first share its pages: what they found says nothing of a cache."""
    completions = [completion_of(request(9, sample_index=i), None) for i in range(3)]
    for completion, cached, preempted in zip(completions, (4, 8, 8), (1, 0, 2), strict=True):
        completion.request.num_cached_tokens = cached
        completion.request.num_preemptions = preempted
    output = task_of(*completions).output(None)
    assert output.num_cached_tokens == output.metrics.num_cached_tokens == 4
    assert output.metrics.num_preemptions == 3


def scored_request(**changes: Any) -> Request:
    """A prompt of "abc" whose tokens after the first were scored with the two best."""
    one = request([*b"abc"])
    one.num_prompt_logprobs = 2
    one.prompt_logprobs = [
        TokenLogprobs(token_id=98, logprob=-0.5, rank=1, best=((98, -0.5), (97, -1.5))),
        TokenLogprobs(token_id=99, logprob=-8.0, rank=77, best=((97, -0.25), (98, -math.inf))),
    ]
    one.finish_reason = "length"
    for name, value in changes.items():
        setattr(one, name, value)
    return one


def test_prompt_logprobs_have_an_entry_a_token_and_none_first(tokenizer: Tokenizer) -> None:
    """BB-32: the first completion carries them."""
    first, second = scored_request(), request([*b"abc"], sample_index=1)
    task = task_of(*(completion_of(one, tokenizer) for one in (first, second)))
    entries = task.output(tokenizer).prompt_logprobs
    assert entries is not None and entries[0] is None and len(entries) == 3
    assert entries[1] is not None and entries[2] is not None
    assert [(i, x.rank, x.decoded_token) for i, x in entries[1].items()] == [
        *((98, 1, "b"), (97, 2, "a")),
    ]
    assert list(entries[2]) == [97, 98, 99]
    assert (entries[2][99].rank, entries[2][98].logprob) == (77, -math.inf)


def test_prompt_logprobs_are_none_unless_asked_for(tokenizer: Tokenizer) -> None:
    assert task_of(completion_of(request(), tokenizer)).output(tokenizer).prompt_logprobs is None
    alone = scored_request(prompt_ids=[97], prompt_logprobs=None)
    assert task_of(completion_of(alone, tokenizer)).output(tokenizer).prompt_logprobs == [None]


def test_a_score_has_a_number_a_token_and_their_sum() -> None:
    score = task_of(completion_of(scored_request(), None), prompt="abc").score_output()
    assert (score.prompt, score.prompt_token_ids) == ("abc", [*b"abc"])
    assert score.token_logprobs == [None, -0.5, -8.0] and score.cumulative_logprob == -8.5
    assert score.error is None
    alone = task_of(completion_of(scored_request(prompt_ids=[97], prompt_logprobs=[]), None))
    assert alone.score_output().token_logprobs == [None]
    assert alone.score_output().cumulative_logprob == 0.0


def test_a_score_of_something_impossible_is_minus_infinity() -> None:
    impossible = TokenLogprobs(token_id=98, logprob=-math.inf, rank=9, best=())
    one = scored_request(prompt_ids=[*b"ab"], prompt_logprobs=[impossible])
    score = task_of(completion_of(one, None)).score_output()
    assert score.token_logprobs == [None, -math.inf] and score.cumulative_logprob == -math.inf


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"finish_reason": "error", "error": "NaN somewhere"}, "NaN somewhere"),
        (
            {"finish_reason": "abort", "prompt_logprobs": None},
            "the request ended (abort) with 0 of 2 tokens scored; score the prompt again",
        ),
    ],
)
def test_a_score_that_failed_is_a_row_with_its_error(changes: dict, error: str) -> None:
    score = task_of(completion_of(scored_request(**changes), None)).score_output()
    assert (score.token_logprobs, score.cumulative_logprob, score.error) == ([], None, error)


def test_a_refused_score_is_a_row_with_its_error() -> None:
    task = Task(
        request_id="0",
        prompt="p",
        prompt_ids=[],
        params=request().params,
        arrival_s=0.0,
        error="too long",
    )
    assert task.score_output().error == "too long"
    assert task.output(None).prompt_logprobs is None
