"""Promises 2 and 7: where pages run out, whoever gives way comes back as if nothing had been."""

from typing import Any

import numpy as np
import pytest

from jaxinfer import LLM, SamplingParams
from tests.end_to_end.engines import assert_drained, run, set_loop
from tests.end_to_end.random_requests import everything

WAYS = ("swap", "recompute")


def requests() -> tuple[list[list[int]], list[SamplingParams]]:
    """Each fits the six pages alone; two of them do not fit to their end."""
    numbers = np.random.default_rng(5)
    prompts = [numbers.integers(0, 320, length).tolist() for length in (20, 33, 17, 30)]
    ways: list[dict[str, Any]] = [
        {"temperature": 0, "prompt_logprobs": 1},
        {"temperature": 1.0, "seed": 1, "repetition_penalty": 1.3, "frequency_penalty": 0.5},
        {"temperature": 1.0, "seed": 2, "n": 2, "min_tokens": 30},
        {"temperature": 0, "bad_words": ["e", "th"], "logit_bias": {5: 3.0}},
    ]
    common = {"max_tokens": 40, "logprobs": 2, "ignore_eos": True}
    return prompts, [SamplingParams(**{**common, **way}) for way in ways]


def counted(llm: LLM, *names: str) -> list[float]:
    metrics = llm.get_metrics()
    return [metrics[name] for name in names]


@pytest.mark.parametrize("caches", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_preempted_requests_come_back_complete(few: LLM, tiny: LLM, way: str, caches: bool) -> None:
    """BB-33 (vllm#16832, vllm-oxide#40): ids, log-probabilities and usage as with ample pages."""
    prompts, params = requests()
    ample = [everything(output) for output in run(tiny, prompts, params)]
    set_loop(few, admission="optimistic", preemption=way, enable_prefix_caching=caches)
    before = counted(few, "num_preemptions", "prompt_tokens", "generation_tokens")
    outputs = run(few, prompts, params)
    assert [everything(output) for output in outputs] == ample
    assert_drained(few)
    after = counted(few, "num_preemptions", "prompt_tokens", "generation_tokens")
    preempted, read, written = (new - old for new, old in zip(after, before, strict=True))
    assert (read, written) == (100, 200)  # computing again is not counted
    assert preempted == sum(output.metrics.num_preemptions for output in outputs) > 0
    assert [output.metrics.num_generation_tokens for output in outputs] == [40, 40, 80, 40]
    for output in outputs:
        for one in output.outputs:
            assert one.logprobs is not None and len(one.logprobs) == len(one.token_ids) == 40


@pytest.mark.parametrize("way", WAYS)
def test_deltas_of_a_preempted_request_join_too(few: LLM, way: str) -> None:
    """Promise 4: nothing twice, nothing missing."""
    prompts, params = requests()
    wanted = [one.token_ids for output in run(few, prompts, params) for one in output.outputs]
    set_loop(few, admission="optimistic", preemption=way)
    (before,) = counted(few, "num_preemptions")
    joined: dict[tuple[str, int], list[int]] = {}
    for delta in few.stream(prompts, params):
        joined.setdefault((delta.request_id, delta.index), []).extend(delta.token_ids)
    assert counted(few, "num_preemptions") > [before]
    order = sorted(joined, key=lambda key: (int(key[0]), key[1]))
    assert [joined[key] for key in order] == wanted


def test_reserved_pages_never_run_out(few: LLM) -> None:
    prompts, params = requests()
    (before,) = counted(few, "num_preemptions")
    run(few, prompts, params)
    assert counted(few, "num_preemptions") == [before]
