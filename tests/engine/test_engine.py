"""The engine's loop over a chain of tokens: neighbours, refusals, ends, counters; no device."""

from typing import Any

import pytest

from jaxinfer.config.engine_config import EngineConfig
from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.engine.engine import Engine
from jaxinfer.engine.task import Task
from jaxinfer.errors import RequestError
from jaxinfer.text.tokenizer import Tokenizer
from tests.engine.chain_runner import NAN, chain_engine, chain_of
from tests.support.byte_tokenizer import END

CHAIN = chain_of("abcdefghij", END)


def run(engine: Engine, prompts: list[Any], **params: Any) -> list[Task]:
    tasks = [engine.add(prompt, SamplingParams(**params)) for prompt in prompts]
    drain(engine)
    return tasks


def drain(engine: Engine) -> None:
    for _ in range(1000):
        if not engine.has_work:
            return
        engine.step()
    raise AssertionError("the engine does not come to an end")


def texts(engine: Engine, tasks: list[Task]) -> list[str]:
    return [task.output(engine.intake.tokenizer).outputs[0].text for task in tasks]


def assert_drained(engine: Engine) -> None:
    assert not engine.has_work and not engine._owners
    for pool in engine.scheduler.pages.pools:
        assert pool.num_used == 0 and pool.num_unpromised == pool.num_usable


# One at a time, ahead of what was read, and several at a time.
LOOPS = [
    EngineConfig(async_scheduling=overlaps, num_decode_steps=burst)
    for overlaps in (False, True)
    for burst in (1, 4)
]


@pytest.mark.parametrize(
    "ask", LOOPS, ids=lambda ask: f"{ask.async_scheduling}-{ask.num_decode_steps}"
)
def test_more_prompts_than_slots_each_get_their_text(
    tokenizer: Tokenizer, ask: EngineConfig
) -> None:
    """Promise 1: as many as the prompts, in their order."""
    engine = chain_engine(CHAIN, tokenizer, num_slots=2, ask=ask)
    tasks = run(engine, ["a", "xyzc", "j", "zzzzzzzzzzh", "b"])
    assert texts(engine, tasks) == ["bcdefghij", "defghij", "", "ij", "cdefghij"]
    assert [task.output(tokenizer).outputs[0].finish_reason for task in tasks] == ["stop"] * 5
    assert [task.request_id for task in tasks] == ["0", "1", "2", "3", "4"]
    assert_drained(engine)


def test_deltas_of_all_steps_join_to_the_texts(tokenizer: Tokenizer) -> None:
    engine = chain_engine(CHAIN, tokenizer, num_slots=2)
    tasks = [engine.add(p, SamplingParams(stop="hi")) for p in ("a", "d", "c")]
    joined = {task.request_id: "" for task in tasks}
    ids: dict[str, list[int]] = {task.request_id: [] for task in tasks}
    while engine.has_work:
        for delta in engine.step():
            joined[delta.request_id] += delta.text
            ids[delta.request_id] += delta.token_ids
    assert list(joined.values()) == texts(engine, tasks) == ["bcdefg", "efg", "defg"]
    assert list(ids.values()) == [t.output(tokenizer).outputs[0].token_ids for t in tasks]


@pytest.mark.parametrize("bad", [[], [320], "a" * 65, None, RequestError("not rendered")])
def test_one_bad_prompt_leaves_the_others_alone(tokenizer: Tokenizer, bad: Any) -> None:
    """BB-29, BB-30: as many results as prompts, in order; the bad one is a row with its error."""
    engine = chain_engine(CHAIN, tokenizer)
    tasks = run(engine, ["a", bad, "h"])
    assert tasks[1].error and tasks[1].is_finished
    assert texts(engine, tasks) == ["bcdefghij", "", "ij"]
    assert engine.metrics.finished == {"stop": 2, "error": 1}


@pytest.mark.parametrize(
    ("length", "max_tokens", "expected"),
    [(63, 50, 1), (64, 50, 1), (64, None, 1), (5, None, 59), (60, 3, 3), (60, 5, 4)],
)
def test_the_length_limit(length: int, max_tokens: int | None, expected: int) -> None:
    """BB-30 (vllm#1655): 64 is max_model_len; whatever room there is, one token comes."""
    engine = chain_engine({}, None)
    (task,) = run(engine, [[7] * length], max_tokens=max_tokens)
    (out,) = task.output(None).outputs
    assert len(out.token_ids) == expected and out.finish_reason == "length"
    assert_drained(engine)


def test_what_never_fits_says_pages_needed_and_present() -> None:
    engine = chain_engine({}, None, num_pages=(4,), page_tokens=8)
    tasks = run(engine, [[1] * 20, [1] * 30, [1] * 3], max_tokens=2)
    assert [bool(task.error) for task in tasks] == [False, True, False]
    assert tasks[1].error is not None and "needs 4 pages" in tasks[1].error
    assert "the pool has 3" in tasks[1].error and tasks[1].completions == []


def test_nan_is_an_error_of_its_row(tokenizer: Tokenizer) -> None:
    """Promise 11."""
    engine = chain_engine({**CHAIN, ord("f"): NAN}, tokenizer)
    tasks = run(engine, ["a", "g"])
    outputs = [task.output(tokenizer) for task in tasks]
    assert [one.outputs[0].finish_reason for one in outputs] == ["error", "stop"]
    assert outputs[0].error is not None and "NaN" in outputs[0].error
    assert texts(engine, tasks) == ["bcdef", "hij"]
    assert_drained(engine)


def test_abort_frees_slots_and_queue(tokenizer: Tokenizer) -> None:
    engine = chain_engine(CHAIN, tokenizer, num_slots=2)
    tasks = [engine.add("a", SamplingParams()) for _ in range(4)]
    engine.step()
    engine.abort(tasks[0])
    engine.abort(tasks[3])
    engine.abort(tasks[3])
    drain(engine)
    reasons = [task.output(tokenizer).outputs[0].finish_reason for task in tasks]
    assert reasons == ["abort", "stop", "stop", "abort"]
    assert_drained(engine)


def test_completions_of_one_prompt_share_a_seed_and_differ_in_index(tokenizer: Tokenizer) -> None:
    engine = chain_engine(CHAIN, tokenizer)
    one, other = run(engine, ["a", "a"], n=3)
    outputs = [task.output(tokenizer).outputs for task in (one, other)]
    assert [out.index for out in outputs[0]] == [0, 1, 2]
    seeds = [{out.seed for out in outs} for outs in outputs]
    assert len(seeds[0]) == len(seeds[1]) == 1 and seeds[0] != seeds[1]
    assert engine.metrics.prompt_tokens == 2


def test_seeds_come_from_the_engine_s_and_a_given_one_takes_none(tokenizer: Tokenizer) -> None:
    """BB-21 (vllm#51226): a seeded neighbour does not move the seeds of the others."""
    first, second = (chain_engine(CHAIN, tokenizer) for _ in range(2))
    plain = [task.output(None).outputs[0].seed for task in run(first, ["a", "a"])]
    a = second.add("a", SamplingParams())
    seeded = second.add("a", SamplingParams(seed=42))
    b = second.add("a", SamplingParams())
    assert [task.output(None).outputs[0].seed for task in (a, seeded, b)] == [
        plain[0],
        42,
        plain[1],
    ]


def test_parameters_that_need_what_is_not_there_are_row_errors(tokenizer: Tokenizer) -> None:
    engine = chain_engine(CHAIN, tokenizer)
    task = engine.add("a", SamplingParams(stop_token_ids=[320]))
    assert task.error is not None and "320" in task.error
    task = chain_engine(CHAIN, None).add([97], SamplingParams(stop="x"))
    assert task.error is not None and "no tokenizer" in task.error
    assert not engine.has_work


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_eos_may_be_ignored(tokenizer: Tokenizer, ignore_eos: bool) -> None:
    engine = chain_engine({**CHAIN, END: ord("a")}, tokenizer)
    (task,) = run(engine, ["i"], ignore_eos=ignore_eos, max_tokens=5)
    assert texts(engine, [task]) == ["jabc" if ignore_eos else "j"]


def test_counters(tokenizer: Tokenizer) -> None:
    engine = chain_engine(CHAIN, tokenizer)
    run(engine, ["a", "h", "xx"], max_tokens=4)
    numbers = engine.metrics.snapshot()
    assert numbers["prompt_tokens"] == 4 and numbers["generation_tokens"] == 4 + 3 + 4
    assert numbers['request_success{finished_reason="stop"}'] == 1
    assert numbers['request_success{finished_reason="length"}'] == 2
    assert numbers["time_to_first_token_seconds_count"] == 3
    assert numbers["kv_cache_usage_perc"] == 0 and numbers["kv_cache_usage_peak_perc"] > 0
