"""Ctrl-C at any moment, between any two statements: the next call is as if nothing had been."""

import random
import signal
from pathlib import Path
from typing import Any

import pytest

from jaxinfer import LLM, SamplingParams
from tests.end_to_end.conftest import OpenLLM
from tests.end_to_end.engines import assert_drained, bits, run

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
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGALRM, before)


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


def test_a_cache_that_went_with_an_interrupted_step_is_made_anew(
    open_llm: OpenLLM, tiny_folder: Path
) -> None:
    """What a signal between a step's call and the store of its results leaves behind."""
    with open_llm(tiny_folder, max_num_seqs=2, prefill_chunk_tokens=16) as llm:
        wanted = [bits(output) for output in run(llm, PROMPTS, PARAMS)]
        runner = llm.engine.runner
        decode = runner.decode

        def lose_the_result(plan: Any) -> Any:
            cache, state = runner.cache, runner.state
            decode(plan)
            runner.cache, runner.state = cache, state
            raise KeyboardInterrupt

        runner.decode = lose_the_result
        with pytest.raises(KeyboardInterrupt):
            run(llm, PROMPTS, PARAMS)
        del runner.decode
        assert [bits(output) for output in run(llm, PROMPTS, PARAMS)] == wanted
        assert_drained(llm)


def test_an_interrupt_while_prompts_are_added_undoes_them(
    open_llm: OpenLLM, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_llm(tiny_folder, max_num_seqs=2, prefill_chunk_tokens=16) as llm:
        add = llm.engine.add
        calls = iter(range(10))

        def add_one(*arguments: Any) -> Any:
            if next(calls) == 1:
                raise KeyboardInterrupt
            return add(*arguments)

        monkeypatch.setattr(llm.engine, "add", add_one)
        with pytest.raises(KeyboardInterrupt):
            run(llm, PROMPTS, PARAMS)
        monkeypatch.undo()
        assert all(output.error is None for output in run(llm, PROMPTS, PARAMS))
