"""Ctrl-C at any moment, between any two statements: the next call is as if nothing had been."""

import gc
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from jaxinfer import LLM, SamplingParams
from tests.end_to_end.conftest import OpenLLM
from tests.end_to_end.engines import assert_drained, bits, run, set_loop

PROMPTS = [list(range(3, 3 + length)) for length in (5, 40, 17)]
PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=1)


def interrupt_after(seconds: float, llm: LLM) -> bool:
    """Runs the prompts; a real signal raises KeyboardInterrupt on the way. True if it came."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        return False
    except KeyboardInterrupt:
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.fixture
def alarm_as_ctrl_c() -> Any:
    # Python loses what is raised in a callback of its garbage collector (jax and hypothesis have
    # some): an interrupt at that moment would be no interrupt, and a failure of its own.
    gc.disable()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGALRM, before)
    gc.enable()


def test_an_interrupt_at_any_moment_leaves_a_working_engine(
    open_llm: OpenLLM, tiny_folder: Path, alarm_as_ctrl_c: None
) -> None:
    moments = random.Random(0)
    with open_llm(tiny_folder, max_num_seqs=2, prefill_chunk_tokens=16) as llm:
        wanted = [bits(output) for output in run(llm, PROMPTS, PARAMS)]
        came = sum(interrupt_after(moments.uniform(0.0005, 0.03), llm) for _ in range(40))
        assert came > 5
        assert [bits(output) for output in run(llm, PROMPTS, PARAMS)] == wanted
        assert_drained(llm)


@pytest.mark.parametrize("way", ["swap", "recompute"])
@pytest.mark.parametrize("burst", [1, 4])
def test_an_interrupt_with_steps_under_way_and_pages_on_the_host(
    few: LLM, alarm_as_ctrl_c: None, way: str, burst: int
) -> None:
    """Overlapped steps, bursts, preempted and waiting requests: all gone, nothing left over."""
    loop = {"admission": "optimistic", "preemption": way, "num_decode_steps": burst}
    set_loop(few, **loop)
    prompts = [[place] * 20 for place in range(5)]
    params = SamplingParams(temperature=1.0, seed=3, n=2, max_tokens=40, ignore_eos=True)
    start = time.perf_counter()
    wanted = [bits(output) for output in run(few, prompts, params)]
    lasted = time.perf_counter() - start
    moments, came = random.Random(way), 0
    for _ in range(12):
        signal.setitimer(signal.ITIMER_REAL, moments.uniform(0.05, 0.9) * lasted)
        try:
            run(few, prompts, params)
        except KeyboardInterrupt:
            came += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        assert_drained(few)
    assert came > 2
    assert [bits(output) for output in run(few, prompts, params)] == wanted


def test_an_interrupt_while_a_request_is_on_the_host(few: LLM) -> None:
    """In a stream that is left there: its copy is dropped, and the next call is as before."""
    set_loop(few, admission="optimistic", preemption="swap")
    prompts = [[place] * 20 for place in range(4)]
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    wanted = [bits(output) for output in run(few, prompts, params)]
    stream = few.stream(prompts, params)
    while not few.engine.runner._swapped:
        next(stream)
    with pytest.raises(KeyboardInterrupt):
        stream.throw(KeyboardInterrupt)
    assert_drained(few)
    metrics = few.get_metrics()
    assert metrics["num_requests_running"] == metrics["num_requests_waiting"] == 0
    assert [bits(output) for output in run(few, prompts, params)] == wanted


def test_an_interrupt_of_logits_leaves_a_working_engine(
    tiny: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache had gone with the step."""
    wanted = [bits(output) for output in run(tiny, PROMPTS, PARAMS)]
    runner = tiny.engine.runner
    launch = runner.launch

    def lose_the_result(plan: Any) -> Any:
        cache, state = runner.cache, runner.state
        launch(plan)
        runner.cache, runner.state = cache, state
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "launch", lose_the_result)
    with pytest.raises(KeyboardInterrupt):
        tiny.logits([1, 2, 3])
    monkeypatch.undo()
    assert [bits(output) for output in run(tiny, PROMPTS, PARAMS)] == wanted


def test_a_cache_that_went_with_an_interrupted_step_is_made_anew(
    open_llm: OpenLLM, tiny_folder: Path
) -> None:
    """What a signal between a step's call and the store of its results leaves behind."""
    with open_llm(tiny_folder, max_num_seqs=2, prefill_chunk_tokens=16) as llm:
        wanted = [bits(output) for output in run(llm, PROMPTS, PARAMS)]
        runner = llm.engine.runner
        launch = runner.launch

        def lose_the_result(plan: Any) -> Any:
            cache, state = runner.cache, runner.state
            launch(plan)
            runner.cache, runner.state = cache, state
            raise KeyboardInterrupt

        runner.launch = lose_the_result
        with pytest.raises(KeyboardInterrupt):
            run(llm, PROMPTS, PARAMS)
        del runner.launch
        assert [bits(output) for output in run(llm, PROMPTS, PARAMS)] == wanted
        assert_drained(llm)


def test_a_cache_that_went_with_an_interrupted_draft_is_made_anew(
    open_llm: OpenLLM, tiny_folder: Path
) -> None:
    """Between a draft step's call and the store of its cache; the loop state stays."""
    drafting = {"method": "self", "num_layers": 1, "adaptive": False}
    shape = {"max_num_seqs": 2, "max_num_batched_tokens": 16}
    with open_llm(tiny_folder, **shape, speculative_config=drafting) as llm:
        wanted = [bits(output) for output in run(llm, PROMPTS, PARAMS)]
        programs = llm.engine.runner.programs.draft
        (width,) = programs
        program = programs[width]

        def lose_the_result(*arguments: Any) -> Any:
            program(*arguments)
            raise KeyboardInterrupt

        programs[width] = lose_the_result
        with pytest.raises(KeyboardInterrupt):
            run(llm, PROMPTS, PARAMS)
        programs[width] = program
        assert [bits(output) for output in run(llm, PROMPTS, PARAMS)] == wanted
        assert_drained(llm)


def test_an_interrupt_while_prompts_are_added_undoes_them(
    open_llm: OpenLLM, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_llm(tiny_folder, max_num_seqs=2, prefill_chunk_tokens=16) as llm:
        add = llm.engine.add
        calls = iter(range(10))

        def add_one(*arguments: Any, **options: Any) -> Any:
            if next(calls) == 1:
                raise KeyboardInterrupt
            return add(*arguments, **options)

        monkeypatch.setattr(llm.engine, "add", add_one)
        with pytest.raises(KeyboardInterrupt):
            run(llm, PROMPTS, PARAMS)
        monkeypatch.undo()
        assert all(output.error is None for output in run(llm, PROMPTS, PARAMS))
