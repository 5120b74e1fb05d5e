"""Prompts of every form and fault: as many outputs as prompts, in their order; faults stay rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxinfer import LLM, SamplingParams
from jaxinfer.errors import ConfigError, RequestError
from jaxinfer.text.tokenizer import Tokenizer
from tests.end_to_end.conftest import OpenLLM
from tests.end_to_end.engines import GREEDY, assert_drained, bits, ids, run
from tests.support.byte_tokenizer import BOS, END, byte_backend, byte_tokenizer
from tests.support.tiny_models import write_tiny

TEXT = "ok"
IDS = list(TEXT.encode())


def row_error(llm: LLM, prompt: Any, params: SamplingParams = GREEDY) -> str:
    """The error of a bad prompt between good ones, which must not feel it."""
    (alone,) = run(llm, [TEXT], params)
    outputs = run(llm, [TEXT, prompt, TEXT], params)
    assert bits(outputs[0]) == bits(outputs[2]) == bits(alone)
    (completion,) = outputs[1].outputs
    assert (completion.text, completion.token_ids) == ("", [])
    assert completion.finish_reason == "error" and outputs[1].finished
    error = outputs[1].error
    assert error is not None
    return error


@pytest.mark.parametrize(
    "prompt",
    [TEXT, IDS, tuple(IDS), np.array(IDS), [np.int32(token) for token in IDS]]
    + [{"prompt": TEXT}, {"prompt_token_ids": IDS}, {"prompt_token_ids": np.array(IDS)}],
    ids=lambda prompt: type(prompt).__name__,
)
def test_forms_of_one_prompt(tiny: LLM, prompt: Any) -> None:
    """Alone and in a list."""
    wanted = ids(run(tiny, [IDS]))
    for asked in (prompt, [prompt]):
        (output,) = run(tiny, asked)
        assert ids([output]) == wanted
        assert output.prompt_token_ids == IDS
        text_given = isinstance(prompt, str) or (isinstance(prompt, dict) and "prompt" in prompt)
        assert output.prompt == (TEXT if text_given else None)


def test_outputs_are_as_many_and_in_the_order_of_the_prompts(tiny: LLM) -> None:
    """Promise 1, with more prompts than slots and different lengths of work."""
    prompts = [[token] * (1 + token % 40) for token in range(30)]
    params = [SamplingParams(temperature=0, max_tokens=1 + place % 7) for place in range(30)]
    outputs = run(tiny, prompts, params)
    assert [output.prompt_token_ids for output in outputs] == prompts
    assert all(output.outputs[0].finish_reason in ("stop", "length") for output in outputs)
    assert len({output.request_id for output in outputs}) == 30


def test_no_prompts_no_outputs(tiny: LLM) -> None:
    """BB-29 (vllm#7283)."""
    assert run(tiny, []) == []
    assert list(tiny.stream([])) == []


def test_an_empty_text_starts_from_bos(tiny: LLM) -> None:
    """BB-29: with a tokenizer that has a BOS."""
    first, empty, third = run(tiny, [TEXT, "", "ok2"])
    assert empty.error is None and empty.prompt_token_ids == [BOS]
    assert ids([empty]) == ids(run(tiny, [[BOS]]))
    assert [bits(first), bits(third)] == [bits(one) for one in run(tiny, [TEXT, "ok2"])]


def test_an_empty_text_without_bos_is_an_error(open_llm: OpenLLM, tiny_folder: Path) -> None:
    """BB-29: nothing to start from; the neighbours go on."""
    tokenizer = Tokenizer(byte_backend(), eos_token_ids=(END,))
    with open_llm(tiny_folder, max_num_seqs=8, tokenizer=tokenizer) as llm:
        assert "no tokens" in row_error(llm, "")


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([], ["no tokens"]),
        ([1, 320], ["prompt_token_ids[1]=320", "320", "0 to 319"]),
        ([-1], ["prompt_token_ids[0]=-1", "0 to 319"]),
        ([2**40], ["vocabulary of 320"]),
        ([1.5, 2], ["prompt_token_ids[0]=1.5", "float", "must be an int"]),
        ([1, "a"], ["prompt_token_ids[1]='a'", "str"]),
        ([True], ["prompt_token_ids[0]=True", "bool"]),
        ([[1, 2]], ["prompt_token_ids[0]=[1, 2]", "list"]),
        (None, ["prompt=None", "NoneType", "pass a str"]),
        (5.5, ["prompt=5.5", "pass a str"]),
        (b"ok", ["bytes", "pass a str"]),
        ({"text": "a"}, ["['text']", "'prompt'"]),
        ({"prompt": "a", "prompt_token_ids": [1]}, ["exactly one"]),
        ({}, ["exactly one"]),
        ({"prompt_token_ids": "ok"}, ["'ok'", "pass ids"]),
        ({"prompt": None}, ["prompt=None"]),
        ("\ud800", ["surrogate"]),
        ([7] * 257, ["257", "256", "max_model_len"]),
        ("x" * 300, ["300", "256", "max_model_len"]),
    ],
    ids=lambda value: str(value)[:20] if not isinstance(value, list) else "",
)
def test_bad_prompts_are_rows_with_an_error(tiny: LLM, prompt: Any, words: list[str]) -> None:
    error = row_error(tiny, prompt)
    for word in words:
        assert word in error


def test_a_refused_row_still_says_what_was_asked(tiny: LLM) -> None:
    assert run(tiny, ["x" * 300])[0].prompt == "x" * 300


@pytest.mark.parametrize("prompts", [None, 5, 1.5, b"ok"], ids=str)
def test_what_is_no_list_of_prompts_is_one_bad_prompt(tiny: LLM, prompts: Any) -> None:
    (output,) = run(tiny, prompts)
    assert output.error is not None and "pass a str" in output.error


def test_text_without_a_tokenizer_is_an_error(open_llm: OpenLLM, tmp_path: Path) -> None:
    """A checkpoint without one works with ids."""
    with open_llm(write_tiny(tmp_path, eos_token_id=END), max_num_seqs=8) as llm:
        assert llm.get_tokenizer() is None
        good, bad, stops = run(
            llm, [IDS, TEXT, IDS], [GREEDY, GREEDY, SamplingParams(stop="x", max_tokens=1)]
        )
        assert good.error is None and good.outputs[0].text == ""
        assert bad.error is not None and "no tokenizer; pass token ids" in bad.error
        assert stops.error is not None and "stop_token_ids" in stops.error
        with pytest.raises(RequestError, match="no tokenizer"):
            llm.chat([{"role": "user", "content": "hi"}], GREEDY, use_tqdm=False)


def test_lengths_around_the_limit(open_llm: OpenLLM, tiny_folder: Path) -> None:
    """BB-30 (vllm#1655, #16732, lighteval#1209): the long one alone fails; the limit is allowed."""
    lengths = (5, 200, 32, 31, 5)
    prompts = [list(range(length)) for length in lengths]
    counts = (1, 50, 50, None, None)
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in counts]
    with open_llm(tiny_folder, max_model_len=32, max_num_batched_tokens=16) as llm:
        outputs = run(llm, prompts, params)
        assert [output.prompt_token_ids for output in outputs if output.error is None] == [
            prompts[place] for place in (0, 2, 3, 4)
        ]
        error = outputs[1].error
        assert error is not None and "200" in error and "32" in error
        assert [len(found) for found in ids(outputs)] == [1, 0, 1, 1, 27]
        reasons = [output.outputs[0].finish_reason for output in outputs]
        assert reasons == ["length", "error", "length", "length", "length"]
        assert llm.logits(prompts[2]).shape == (32, 320)
        with pytest.raises(RequestError, match="200.*32"):
            llm.logits(prompts[1])
        assert_drained(llm)
    with pytest.raises(ValueError, match="max_tokens=0"):
        SamplingParams(max_tokens=0)


def test_strict_raises_before_anything_runs(open_llm: OpenLLM, tiny_folder: Path) -> None:
    with open_llm(tiny_folder, max_num_seqs=8, strict=True) as llm:
        with pytest.raises(RequestError, match="outside the vocabulary"):
            run(llm, [TEXT, [320]])
        assert llm.get_metrics()["num_prefill_steps"] == 0
        assert_drained(llm)
        with pytest.raises(RequestError, match="chat_template: this model has none"):
            llm.chat([{"role": "user", "content": "hi"}], GREEDY, use_tqdm=False)
        assert run(llm, [TEXT])[0].error is None


@pytest.mark.parametrize("token_ids", [[], [320], [7] * 257, "text", None])
def test_logits_refuse_what_generate_refuses(tiny: LLM, token_ids: Any) -> None:
    with pytest.raises(RequestError):
        tiny.logits(token_ids)


@pytest.mark.parametrize("decode_from", [0, -1, 4, 1.5])
def test_logits_refuse_a_place_outside_the_tokens(tiny: LLM, decode_from: Any) -> None:
    with pytest.raises(ConfigError, match="decode_from="):
        tiny.logits([1, 2, 3], decode_from=decode_from)


def test_metrics_count_what_ran(open_llm: OpenLLM, tiny_folder: Path) -> None:
    with open_llm(tiny_folder, max_num_seqs=8, tokenizer=byte_tokenizer()) as llm:
        outputs = run(llm, [[1, 2, 3], [], [4] * 20])
        metrics = llm.get_metrics()
    assert metrics["prompt_tokens"] == 23
    assert metrics["generation_tokens"] == 16
    assert metrics['request_success{finished_reason="length"}'] == 2
    assert metrics['request_success{finished_reason="error"}'] == 1
    assert metrics["num_requests_running"] == metrics["num_requests_waiting"] == 0
    assert metrics["time_to_first_token_seconds_count"] == 2
    times = outputs[0].metrics
    assert times.num_prompt_tokens == 3 and times.num_generation_tokens == 8
    assert times.time_to_first_token_s is not None and times.e2e_latency_s is not None
    assert 0 < times.time_to_first_token_s <= times.e2e_latency_s
    assert outputs[1].metrics.time_to_first_token_s is None


def test_logits_of_some_places_come_a_few_rows_at_a_time(tiny: LLM) -> None:
    """To the bit those of all at once; who leaves early leaves an idle engine."""
    tokens, steps = [(7 * place) % 320 for place in range(70)], []
    places = [69, 3, *range(20, 65)]
    whole = tiny.logits(tokens)
    blocks = list(tiny.logit_blocks(tokens, places, report=steps.append))
    assert max(len(block) for block in blocks) == tiny.geometry.head_rows < len(places)
    np.testing.assert_array_equal(np.concatenate(blocks), whole[places])
    assert sum(steps) == 70 and len(steps) == -(-70 // tiny.geometry.chunk_tokens)
    for _ in tiny.logit_blocks(tokens, places):
        break
    np.testing.assert_array_equal(tiny.logits(tokens), whole)
    with pytest.raises(RequestError, match="320"):
        next(tiny.logit_blocks([320], [0]))
