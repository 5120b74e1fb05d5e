"""Who is served when: priorities, time limits, a bounded queue; never at the cost of a token."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxinfer import LLM, RequestOptions, SamplingParams
from jaxinfer.errors import ConfigError, RequestError
from tests.end_to_end.conftest import OpenLLM
from tests.end_to_end.engines import assert_drained, bits, run, set_loop

PROMPTS = [[1, 2, 3], list(range(40)), [9] * 17, [4]]
PARAMS = SamplingParams(temperature=1.0, seed=2, max_tokens=12, ignore_eos=True, logprobs=1)


@pytest.fixture(scope="module")
def _single(open_llm: OpenLLM, tiny_folder: Path) -> Iterator[LLM]:
    with open_llm(tiny_folder, max_num_seqs=1, max_num_batched_tokens=16) as llm:
        yield llm


@pytest.fixture
def single(_single: LLM) -> Iterator[LLM]:
    """An engine of one slot: requests are served one after another."""
    set_loop(_single, scheduling_policy="fcfs", max_num_waiting=None, async_scheduling=True)
    yield _single
    assert_drained(_single)


def served_order(llm: LLM, options: list[RequestOptions]) -> list[int]:
    """In which order requests come to their end."""
    prompts = [[5 + place] for place in range(len(options))]
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    ended = [
        int(delta.request_id)
        for delta in llm.stream(prompts, params, options=options)
        if delta.finish_reason
    ]
    return [one - min(ended) for one in ended]


def test_a_low_number_is_served_first(single: LLM) -> None:
    options = [RequestOptions(priority=value) for value in (5, 0, 3, -2, 0)]
    with pytest.raises(ConfigError, match="priority=5 needs scheduling_policy='priority'"):
        served_order(single, options)
    set_loop(single, scheduling_policy="priority")
    assert served_order(single, options) == [3, 1, 4, 2, 0]


def test_latency_sensitive_requests_come_ahead_of_every_priority(single: LLM) -> None:
    for policy, ahead, behind in (("fcfs", 0, 0), ("priority", -5, 9)):
        set_loop(single, scheduling_policy=policy)
        options = [RequestOptions(priority=ahead), RequestOptions(latency_sensitive=True)]
        options += [RequestOptions(latency_sensitive=True, priority=behind)]
        assert served_order(single, options) == [1, 2, 0]


def test_priority_is_a_short_form_of_options(single: LLM) -> None:
    set_loop(single, scheduling_policy="priority")
    outputs = single.generate([[5], [6], [7]], PARAMS, priority=[2, 1, 0], use_tqdm=False)
    ends = [output.metrics.e2e_latency_s for output in outputs]
    assert ends == sorted(ends, reverse=True)  # type: ignore[type-var]
    assert [output.prompt_token_ids for output in outputs] == [[5], [6], [7]]  # promise 1
    with pytest.raises(ConfigError, match="2 priorities for 3 prompts"):
        single.generate([[5], [6], [7]], PARAMS, priority=[2, 1], use_tqdm=False)


def slowed(llm: LLM, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Every step takes a while longer, so that a limit comes in the middle of it."""
    launch = llm.engine.runner.launch

    def launch_slowly(plan: Any) -> Any:
        time.sleep(seconds)
        return launch(plan)

    monkeypatch.setattr(llm.engine.runner, "launch", launch_slowly)


def test_a_timeout_keeps_what_came_and_disturbs_nobody(
    tiny: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True, logprobs=1)
    (whole,) = run(tiny, [PROMPTS[1]], long)
    alone = [bits(output) for output in run(tiny, PROMPTS, PARAMS)]
    slowed(tiny, monkeypatch, 0.01)
    hurried = [RequestOptions(), RequestOptions(timeout_s=0.5), *[RequestOptions()] * 3]
    outputs = tiny.generate(
        [PROMPTS[0], PROMPTS[1], *PROMPTS[1:]],
        [PARAMS, long, *[PARAMS] * 3],
        options=hurried,
        use_tqdm=False,
    )
    assert [bits(outputs[place]) for place in (0, 2, 3, 4)] == alone
    (late,) = outputs[1].outputs
    assert outputs[1].finished and outputs[1].error is None
    assert (late.finish_reason, late.stop_reason) == ("abort", "timeout")
    assert 0 < len(late.token_ids) < 200
    (complete,) = whole.outputs
    assert late.token_ids == complete.token_ids[: len(late.token_ids)]
    assert late.logprobs == (complete.logprobs or [])[: len(late.token_ids)]
    tokenizer = tiny.get_tokenizer()
    assert tokenizer is not None and late.text == tokenizer.decode(late.token_ids)


def test_a_timeout_in_the_queue(single: LLM) -> None:
    """Also of samples, of a score, in a stream, and where steps are under way."""
    none = RequestOptions(timeout_s=1e-6)
    for overlaps in (True, False):
        set_loop(single, async_scheduling=overlaps)
        many = SamplingParams(n=3, max_tokens=4)
        outputs = single.generate(
            PROMPTS, many, options=[none, RequestOptions(), none, none], use_tqdm=False
        )
        reasons = [[one.stop_reason for one in output.outputs] for output in outputs]
        assert reasons[0] == reasons[2] == reasons[3] == ["timeout"] * 3
        assert {one.finish_reason for one in outputs[1].outputs} <= {"stop", "length"}
        assert outputs[0].metrics.time_to_first_token_s is None
        deltas = list(single.stream(PROMPTS[:1], many, options=none))
        assert [delta.finish_reason for delta in deltas] == ["abort"] * 3


def test_one_more_than_may_wait_is_that_row_s_error(single: LLM) -> None:
    """One slot and two that may wait; the others go on."""
    set_loop(single, max_num_waiting=2)
    alone = [bits(run(single, [prompt], PARAMS)[0]) for prompt in PROMPTS]
    outputs = run(single, PROMPTS, PARAMS)
    assert [bits(output) for output in outputs[:3]] == alone[:3]
    error = outputs[3].error
    assert error is not None and "max_num_waiting allows 2" in error
    assert outputs[3].outputs[0].finish_reason == "error"
    (many,) = run(single, [[1]], SamplingParams(n=4, max_tokens=1))
    assert many.error is not None  # all samples of a prompt, or none
    assert bits(run(single, [PROMPTS[3]], PARAMS)[0]) == alone[3]


def test_a_full_queue_raises_where_strict(open_llm: OpenLLM, tiny_folder: Path) -> None:
    options = {"max_num_seqs": 1, "max_num_batched_tokens": 16, "strict": True}
    with open_llm(tiny_folder, **options, max_num_waiting=1) as llm:
        with pytest.raises(RequestError, match="max_num_waiting allows 1"):
            run(llm, PROMPTS, PARAMS)
        assert_drained(llm)
        assert run(llm, PROMPTS[:2], PARAMS)[1].error is None


def test_nobody_is_overtaken_for_ever(single: LLM) -> None:
    """A hundred urgent requests do not keep the only patient one waiting to the end."""
    set_loop(single, scheduling_policy="priority")
    options = [RequestOptions(priority=9), *[RequestOptions(priority=0)] * 100]
    assert served_order(single, options).index(0) < 90
