"""One task's text and output: stop strings, EOS, deltas that join, log-probabilities, times."""

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


def play(
    tokenizer: Tokenizer | None, text: str, *after: int, max_new_tokens: int = 99, **params: Any
) -> tuple[RequestOutput, list[str]]:
    """The output and deltas of a request that draws the bytes of `text`, then `after`."""
    one = request(max_new_tokens=max_new_tokens, end_ids=(END,), **params)
    completion = completion_of(one, tokenizer)
    task = Task(
        request_id="0",
        prompt=None,
        prompt_ids=one.prompt_ids,
        params=one.params,
        arrival_s=0.0,
        completions=[completion],
    )
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


def test_without_text_there_are_ids(tokenizer: Tokenizer) -> None:
    output, texts = play(None, "ab", END)
    assert ending(output) == ("", "stop", None)
    assert output.outputs[0].token_ids == [97, 98, END] and set(texts) == {""}


def test_an_error_ends_the_row_and_keeps_what_came(tokenizer: Tokenizer) -> None:
    one = request(max_new_tokens=9)
    completion = completion_of(one, tokenizer)
    task = Task(
        request_id="3",
        prompt="p",
        prompt_ids=[1],
        params=one.params,
        arrival_s=0.0,
        completions=[completion],
    )
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
        one.logprobs.append(TokenLogprobs(token_id=token, logprob=value, best=best))
    task = Task(
        request_id="0",
        prompt=None,
        prompt_ids=[1],
        params=one.params,
        arrival_s=0.0,
        completions=[completion_of(one, tokenizer)],
    )
    (out,) = task.output(tokenizer).outputs
    assert out.logprobs is not None and out.cumulative_logprob == -8.0
    first, second = out.logprobs
    assert [(i, x.rank, x.decoded_token) for i, x in first.items()] == [(97, 1, "a"), (98, 2, "b")]
    assert list(second) == [97, 98, 99]
    assert (second[99].logprob, second[99].rank) == (-7.0, None)


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
    one.logprobs.append(TokenLogprobs(token_id=2, logprob=-0.5, best=((2, -0.5),)))
    task = Task(
        request_id="0",
        prompt=None,
        prompt_ids=[1],
        params=one.params,
        arrival_s=0.0,
        completions=[completion_of(one, tokenizer)],
    )
    (out,) = task.output(tokenizer).outputs
    assert out.logprobs is not None and out.logprobs[0][2].decoded_token == " a"


def test_times(tokenizer: Tokenizer) -> None:
    """TPOT is (end to end - TTFT) / (tokens - 1), of the longest completion."""
    requests = [request(4, sample_index=i) for i in range(2)]
    for one, tokens, first in zip(requests, (5, 2), (11.0, 12.0), strict=True):
        one.output_ids = [97] * tokens
        one.admitted_s, one.first_token_s = 10.5, first
    task = Task(
        request_id="0",
        prompt=None,
        prompt_ids=[1, 2],
        params=requests[0].params,
        arrival_s=10.0,
        completions=[completion_of(one, None) for one in requests],
    )
    running = task.output(tokenizer).metrics
    assert running.time_to_first_token_s == 1.0 and running.e2e_latency_s is None
    for one, end in zip(requests, (19.0, 14.0), strict=True):
        one.finish_reason, one.finished_s = "length", end
    metrics = task.output(tokenizer).metrics
    assert metrics.e2e_latency_s == 9.0 and metrics.time_per_output_token_s == 2.0
    assert metrics.queue_time_s == 0.5
    assert (metrics.num_prompt_tokens, metrics.num_generation_tokens) == (2, 7)
