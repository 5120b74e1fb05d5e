"""How the engine's loop goes: ahead of what it read, in bursts, ended early, reset; no device."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxinfer.config.engine_config import EngineConfig
from jaxinfer.config.request_options import RequestOptions
from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.engine import engine as engine_module
from jaxinfer.engine.engine import Engine
from jaxinfer.engine.task import Task
from jaxinfer.engine.trace import Timeline
from jaxinfer.text.tokenizer import Tokenizer
from tests.engine.chain_runner import ChainRunner, chain_engine, chain_of
from tests.engine.test_engine import assert_drained, drain
from tests.support.byte_tokenizer import END

CHAIN = chain_of("abcdefghij", END)


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(engine_module, "time", clock)
    return clock


def calls(engine: Engine) -> list[str]:
    runner = engine.runner
    assert isinstance(runner, ChainRunner)
    return [call for call in runner.calls if call in ("launch", "read")]


def host_copies(engine: Engine) -> set[int]:
    runner = engine.runner
    assert isinstance(runner, ChainRunner)
    return runner.host_copies


def add(engine: Engine, prompt: Any, options: RequestOptions | None = None, **params: Any) -> Task:
    return engine.add(prompt, SamplingParams(**params), options)


def outcome(task: Task) -> tuple[list[int], str | None, Any]:
    (one,) = task.output(None).outputs
    return one.token_ids, one.finish_reason, one.stop_reason


def test_without_overlap_every_step_is_read_before_the_next_is_launched() -> None:
    engine = chain_engine({}, None, ask=EngineConfig(async_scheduling=False))
    add(engine, [7], max_tokens=3)
    drain(engine)
    assert calls(engine) == ["launch", "read"] * 3


def test_with_overlap_the_next_step_is_launched_before_the_last_is_read() -> None:
    engine = chain_engine({}, None)
    add(engine, [7], max_tokens=4)
    drain(engine)
    assert calls(engine) == ["launch", "launch", *["read", "launch"] * 2, "read", "read"]


def test_a_token_drawn_after_the_end_is_dropped_and_not_counted(tokenizer: Tokenizer) -> None:
    engine = chain_engine(CHAIN, tokenizer)
    task = add(engine, "h", stop="j")
    drain(engine)
    assert outcome(task) == ([*b"ij"], "stop", "j")
    assert engine.metrics.generation_tokens == 2
    assert calls(engine).count("launch") == 3  # prefill, "j", and one too many
    assert_drained(engine)


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_burst_launches_several_and_then_reads_them(overlaps: bool) -> None:
    ask = EngineConfig(async_scheduling=overlaps, num_decode_steps=3)
    engine = chain_engine({}, None, ask=ask)
    task = add(engine, [7], max_tokens=7)
    drain(engine)
    assert len(outcome(task)[0]) == 7
    burst = ["launch"] * 3
    if overlaps:  # while a burst runs, the next is launched
        assert calls(engine) == ["launch", *burst, "read", *burst, *["read"] * 6]
    else:
        assert calls(engine) == ["launch", "read", *[*burst, *["read"] * 3] * 2]


def test_what_a_burst_draws_after_an_end_is_dropped(tokenizer: Tokenizer) -> None:
    engine = chain_engine(CHAIN, tokenizer, ask=EngineConfig(num_decode_steps=4))
    tasks = [add(engine, prompt, max_tokens=20) for prompt in ("f", "zzzzzd")]
    drain(engine)
    assert outcome(tasks[0]) == ([*b"ghij", END], "stop", None)
    assert outcome(tasks[1]) == ([*b"efghij", END], "stop", None)
    assert engine.metrics.generation_tokens == 12
    assert_drained(engine)


def test_nobody_waits_for_the_end_of_a_burst() -> None:
    """While a request waits for a slot the steps are single ones, or it would start late."""
    engine = chain_engine({}, None, num_slots=1, ask=EngineConfig(num_decode_steps=8))
    first, second = (add(engine, [7], max_tokens=10) for _ in range(2))
    while not first.is_finished:
        engine.step()
        assert "launch launch launch" not in " ".join(calls(engine)) or second.is_finished
    drain(engine)
    assert len(outcome(second)[0]) == 10


def test_prompt_logprobs_come_with_every_chunk() -> None:
    """BB-32: chunks of 8 and one of a single token; an entry a token, none first."""
    engine = chain_engine({}, None)
    lengths = (1, 7, 8, 9, 16, 17)
    tasks = [add(engine, [5] * length, prompt_logprobs=2, max_tokens=1) for length in lengths]
    drain(engine)
    for task, length in zip(tasks, lengths, strict=True):
        found = task.output(None).prompt_logprobs
        assert found is not None and len(found) == length and found[0] is None
        assert all(entry is not None and entry[5].logprob == -0.5 for entry in found[1:])


def test_a_score_draws_nothing() -> None:
    """Also of a prompt of exactly max_model_len (64): no token has to fit behind it."""
    engine = chain_engine({}, None)
    tasks = [
        engine.add([5] * length, SamplingParams(prompt_logprobs=0, detokenize=False), scores=True)
        for length in (1, 20, 64)
    ]
    drain(engine)
    scores = [task.score_output() for task in tasks]
    assert [score.cumulative_logprob for score in scores] == [0.0, -9.5, -31.5]
    assert engine.metrics.generation_tokens == 0 and engine.metrics.finished == {"length": 3}
    assert_drained(engine)


@pytest.mark.parametrize("n", [1, 3])
def test_nan_in_a_prompt_s_scores_ends_all_its_completions(n: int) -> None:
    """Promise 11: with a delta each, and counted; the neighbour goes on."""
    engine = chain_engine({}, None, nan_scores=(9,), num_slots=2)
    bad = add(engine, [5] * 10 + [9] + [5] * 20, n=n, prompt_logprobs=0, max_tokens=3)
    good = add(engine, [5] * 10, prompt_logprobs=0, max_tokens=3)
    ends = []
    while engine.has_work:
        ends += [delta for delta in engine.step() if delta.finish_reason]
    assert outcome(good)[1] == "length"
    output = bad.output(None)
    assert output.error is not None and "after 10 prompt tokens" in output.error
    assert output.outputs[0].finish_reason == "error"
    assert sorted(delta.index for delta in ends if delta.request_id == "0") == list(range(n))
    assert engine.metrics.finished["error"] >= 1
    assert_drained(engine)


def test_a_timeout_ends_whoever_runs_or_waits_and_keeps_what_came(
    clock: Clock, tokenizer: Tokenizer
) -> None:
    engine = chain_engine({}, tokenizer, num_slots=1)
    hurried = RequestOptions(timeout_s=10.0)
    runs = add(engine, "a", hurried, max_tokens=50, stop="xx")
    waits = add(engine, "b", hurried, max_tokens=5)
    patient = add(engine, "c", RequestOptions(timeout_s=100.0), max_tokens=5)
    for clock.now_s in range(12):
        deltas = engine.step()
    drain(engine)
    ended = {delta.request_id: delta.text for delta in deltas if delta.finish_reason == "abort"}
    assert ended == {"0": "a", "1": ""}  # what was held back for "xx"
    token_ids, reason, stop_reason = outcome(runs)
    assert 5 < len(token_ids) < 12 and (reason, stop_reason) == ("abort", "timeout")
    assert runs.output(None).outputs[0].text == "a" * len(token_ids)
    assert outcome(waits) == ([], "abort", "timeout")
    assert outcome(patient) == ([*b"ccccc"], "length", None)
    assert engine.metrics.finished == {"abort": 2, "length": 1}
    assert_drained(engine)


def test_samples_that_are_not_queued_yet_time_out_too(clock: Clock) -> None:
    engine = chain_engine({}, None, num_slots=1)
    task = add(engine, [5] * 60, RequestOptions(timeout_s=1.0), n=4, max_tokens=2)
    engine.step()
    clock.now_s = 2.0
    drain(engine)
    reasons = [(one.finish_reason, one.stop_reason) for one in task.output(None).outputs]
    assert reasons == [("abort", "timeout")] * 4
    assert_drained(engine)


OPTIMISTIC = [
    EngineConfig(admission="optimistic", preemption=way, async_scheduling=overlaps)
    for way in ("swap", "recompute")
    for overlaps in (False, True)
]


@pytest.mark.parametrize(
    "ask", OPTIMISTIC, ids=lambda ask: f"{ask.preemption}-{ask.async_scheduling}"
)
def test_preempted_requests_get_their_text_and_leave_nothing(
    tokenizer: Tokenizer, ask: EngineConfig
) -> None:
    """BB-33, promise 7: no token twice, every page free, no copy left on the host."""
    shape = {"num_pages": (6,), "page_tokens": 8, "num_slots": 4}
    engine = chain_engine({}, tokenizer, ask=ask, **shape)
    tasks = [add(engine, letter * 5, max_tokens=30) for letter in "abcd"]
    drain(engine)
    for task, letter in zip(tasks, b"abcd", strict=True):
        assert outcome(task) == ([letter] * 30, "length", None)
    numbers = engine.metrics.snapshot()
    assert numbers["num_preemptions"] > 0 and numbers["generation_tokens"] == 120
    seen = sum(task.output(None).metrics.num_preemptions for task in tasks)
    assert seen == numbers["num_preemptions"]
    assert not host_copies(engine)
    assert_drained(engine)


@pytest.mark.parametrize("way", ["abort", "reset"])
def test_a_swapped_request_that_is_ended_leaves_no_copy(way: str) -> None:
    ask = EngineConfig(admission="optimistic", preemption="swap")
    engine = chain_engine({}, None, ask=ask, num_pages=(6,), page_tokens=8)
    tasks = [add(engine, [letter] * 5, max_tokens=30) for letter in range(4)]
    while not host_copies(engine):
        engine.step()
    if way == "abort":
        for task in tasks:
            engine.abort(task)
    else:
        engine.reset()
    drain(engine)
    assert not host_copies(engine)
    assert [outcome(task)[1] for task in tasks] == ["abort"] * 4
    assert engine.metrics.snapshot()['request_success{finished_reason="abort"}'] == 4
    assert_drained(engine)


def test_one_more_than_may_wait_is_refused() -> None:
    engine = chain_engine({}, None, num_slots=2, ask=EngineConfig(max_num_waiting=3))
    tasks = [add(engine, [5], max_tokens=1) for _ in range(7)]
    errors = [task.error for task in tasks]
    assert [error is None for error in errors] == [True] * 5 + [False] * 2
    assert errors[5] is not None and "max_num_waiting allows 3" in errors[5]
    drain(engine)
    assert [outcome(task)[1] for task in tasks] == ["length"] * 5 + ["error"] * 2


def test_a_reset_leaves_an_idle_engine_with_gauges_at_rest() -> None:
    engine = chain_engine({}, None, num_slots=1)
    tasks = [add(engine, [5], max_tokens=9) for _ in range(3)]
    engine.step()
    assert engine.metrics.num_requests_running == 1 and engine.metrics.num_requests_waiting == 2
    engine.reset()
    assert not engine.has_work and [outcome(task)[1] for task in tasks] == ["abort"] * 3
    numbers = engine.metrics.snapshot()
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert numbers[name] == 0, name
    drained = add(engine, [6], max_tokens=2)
    drain(engine)
    assert outcome(drained) == ([6, 6], "length", None)


def test_close_lets_go_of_steps_under_way() -> None:
    """Their arrays are device memory too."""
    engine = chain_engine({}, None)
    add(engine, [5], max_tokens=9)
    engine.step()
    engine.close()
    assert not engine._flights
    assert isinstance(engine.runner, ChainRunner) and engine.runner.calls[-1] == "close"


@pytest.fixture
def spans(tmp_path: Path, tokenizer: Tokenizer) -> Iterator[list[dict[str, Any]]]:
    path = tmp_path / "loop.json"
    engine = chain_engine(CHAIN, tokenizer, timeline=Timeline(path))
    add(engine, "a")
    drain(engine)
    engine.close()
    yield [event for event in json.loads(path.read_text()) if event["ph"] == "X"]


def test_the_timeline_has_every_part_of_the_loop(spans: list[dict[str, Any]]) -> None:
    names = [span["name"] for span in spans]
    assert set(names) == {"schedule", "launch", "read", "text", "prefill", "decode"}
    # Ten tokens, the first by prefill; one step too many, as the end is seen late.
    assert names.count("prefill") == 1 and names.count("decode") == 10
    assert names.count("launch") == names.count("read") == 11
