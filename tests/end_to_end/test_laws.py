"""Promise 8 and the limits, seen from outside: what is drawn is what NumPy would draw from.

The engine's own teacher-forced logits are the input of the reference, which is written from the
rules of `SamplingParams` and shares nothing with the package.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from jaxinfer import LLM, SamplingParams
from tests.end_to_end.engines import run, run_one

PROMPT = [7, 100, 250, 31, 7, 7]
Logits = Callable[[Sequence[int]], np.ndarray]


def logits_of(llm: LLM) -> Logits:
    """Raw logits of the token that follows."""
    return lambda token_ids: llm.logits(list(token_ids))[-1].astype(np.float64)


def penalized(
    logits: np.ndarray, prompt: Sequence[int], output: Sequence[int], params: SamplingParams
) -> np.ndarray:
    """Repetition for every distinct token so far; frequency and presence for generated ones."""
    scores = logits.copy()
    for token in {*prompt, *output}:
        factor = params.repetition_penalty
        scores[token] = scores[token] / factor if scores[token] > 0 else scores[token] * factor
    for token, count in Counter(output).items():
        scores[token] -= params.frequency_penalty * count + params.presence_penalty
    return scores


def greedy(
    logits: Logits, prompt: Sequence[int], params: SamplingParams, count: int
) -> tuple[list[int], float]:
    """The reference's tokens, and the smallest lead that one of them had."""
    output: list[int] = []
    lead = np.inf
    for _ in range(count):
        scores = penalized(logits([*prompt, *output]), prompt, output, params)
        best = np.sort(scores)[::-1]
        lead = min(lead, best[0] - best[1])
        output.append(int(scores.argmax()))
    return output, float(lead)


PENALTIES: list[dict[str, Any]] = [
    {},
    {"presence_penalty": 2.0, "frequency_penalty": 2.0},
    {"presence_penalty": -2.0, "frequency_penalty": -2.0},
    {"repetition_penalty": 1.5},
    {"repetition_penalty": 0.5},
    {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": -1.0},
]


@pytest.mark.parametrize("penalties", PENALTIES, ids=str)
def test_greedy_tokens_under_penalties(tiny: LLM, penalties: dict[str, Any]) -> None:
    """BB-28 (vllm-metal#69, vllm#1577, TRT-LLM#5623): the prompt counts for repetition alone."""
    params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, **penalties)
    wanted, lead = greedy(logits_of(tiny), PROMPT, params, 10)
    assert lead > 1e-3
    assert run_one(tiny, PROMPT, params).token_ids == wanted


def test_penalties_on_the_first_token(tiny: LLM) -> None:
    """BB-28: presence and frequency change nothing before a token is out, repetition does."""
    common: dict[str, Any] = {"temperature": 0, "seed": 1, "max_tokens": 1, "logprobs": 20}
    (best,) = run_one(tiny, PROMPT, SamplingParams(**common)).token_ids
    prompt = [*PROMPT[:-1], best, PROMPT[-1]]
    plain = run_one(tiny, prompt, SamplingParams(**common))
    for penalties in ({"presence_penalty": 2.0}, {"frequency_penalty": 2.0}):
        assert run_one(tiny, prompt, SamplingParams(**common, **penalties)) == plain
    harsh = run_one(tiny, prompt, SamplingParams(**common, repetition_penalty=50.0))
    assert harsh.token_ids[0] not in prompt


def kept(logits: np.ndarray, way: dict[str, Any]) -> dict[int, float]:
    """Tokens that may be drawn, and their law: temperature → min_p → top_k → top_p."""
    scaled = logits / way.get("temperature", 1.0)
    law = np.exp(scaled - scaled.max())
    law[law < way.get("min_p", 0.0) * law.max()] = 0
    if way.get("top_k"):
        law[law < np.sort(law)[-way["top_k"]]] = 0
    order = np.argsort(-law, kind="stable")
    before = np.cumsum(law[order] / law.sum()) - law[order] / law.sum()
    law[order[before >= way.get("top_p", 1.0)]] = 0
    law /= law.sum()
    return {int(token): float(law[token]) for token in np.flatnonzero(law)}


FILTERS: list[dict[str, Any]] = [
    {"top_k": 1},
    {"top_k": 5},
    {"top_p": 0.3},
    {"min_p": 0.3},
    {"top_k": 8, "top_p": 0.8, "min_p": 0.1, "temperature": 2.0},
    {"temperature": 0.3},
]


@pytest.mark.parametrize("way", FILTERS, ids=str)
def test_samples_lie_where_they_may_and_follow_the_law(tiny: LLM, way: dict[str, Any]) -> None:
    """600 samples of one token: none outside, and each about as often as its law says."""
    law = kept(logits_of(tiny)(PROMPT), way)
    count = 600
    params = SamplingParams(n=count, seed=1, max_tokens=1, **way)
    (output,) = run(tiny, [PROMPT], params)
    drawn = Counter(one.token_ids[0] for one in output.outputs)
    assert set(drawn) <= set(law)
    for token, share in law.items():
        spread = 4.5 * np.sqrt(count * share * (1 - share)) + 1
        assert abs(drawn[token] - count * share) <= spread, token


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_only_allowed_ids_come(tiny: LLM, temperature: float) -> None:
    allowed = [5, 80, 200, 319]
    params = SamplingParams(
        temperature=temperature, seed=1, max_tokens=60, ignore_eos=True, allowed_token_ids=allowed
    )
    drawn = run_one(tiny, PROMPT, params).token_ids
    assert set(drawn) <= set(allowed) and len(drawn) == 60
    logits = logits_of(tiny)(PROMPT)
    if not temperature:
        assert drawn[0] == allowed[int(np.argmax(logits[allowed]))]


def test_a_bias_is_added_and_cut(tiny: LLM) -> None:
    logits = logits_of(tiny)(PROMPT)
    best, second = np.argsort(-logits)[:2].tolist()
    gap = float(logits[best] - logits[second])
    for bias, wanted in (
        ({best: -gap / 2}, best),
        ({best: -gap * 1.5}, second),
        ({str(second): gap * 1.5}, second),
        ({second: 1e9, best: -1e9, 3: 90.0}, second),  # cut to 100 and -100
        ({3: 100.0}, 3),
    ):
        params = SamplingParams(temperature=0, max_tokens=1, logit_bias=bias)
        assert run_one(tiny, PROMPT, params).token_ids == [wanted]


def test_bad_words_do_not_come_though_they_are_likeliest(tiny: LLM) -> None:
    """BB-25 with bytes: a word of one token never; of several, only the last after the others."""
    letters: dict[str, Any] = {
        "temperature": 0,
        "ignore_eos": True,
        "max_tokens": 40,
        "allowed_token_ids": list(range(97, 123)),
    }
    free = run_one(tiny, PROMPT, SamplingParams(**letters)).text
    for word in (free[0], free[3:5]):
        limited = run_one(tiny, PROMPT, SamplingParams(**letters, bad_words=[word])).text
        assert word not in limited and len(limited) == 40
        at = free.index(word) + len(word) - 1
        assert limited[:at] == free[:at]  # only what would complete it is another
        assert limited[at] != free[at]


def test_greedy_rows_with_limits_beside_others(tiny: LLM) -> None:
    """BB-19 (vllm#24734): bad words sent -inf into a greedy row, and on into its neighbours."""
    ways: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0, "bad_words": [chr(letter) for letter in range(97, 123)]},
        {"temperature": 1.0, "top_k": 64},
        {"temperature": 0, "allowed_token_ids": [5]},
        {"temperature": 0, "min_tokens": 4},
        {"temperature": 1.0, "min_p": 1.0, "logit_bias": {9: -100}},
    ]
    params = [SamplingParams(max_tokens=8, seed=2, logprobs=3, **way) for way in ways]
    together = run(tiny, [PROMPT] * 6, params)
    for one, output in zip(params, together, strict=True):
        (alone,) = run(tiny, [PROMPT], one)
        assert alone.outputs == output.outputs
        listed = output.outputs[0].logprobs
        assert listed is not None
        assert all(np.isfinite(entry.logprob) for step in listed for entry in step.values())


def test_prompt_s_seed_and_position_are_all_that_a_draw_knows(tiny: LLM) -> None:
    """Promise 3: a sample that is continued by hand, token after token, is the same sample."""
    params = SamplingParams(temperature=1.5, seed=11, max_tokens=12, ignore_eos=True)
    at_once = run_one(tiny, PROMPT, params).token_ids
    by_hand: list[int] = []
    for _ in range(12):
        one = SamplingParams(temperature=1.5, seed=11, max_tokens=1, ignore_eos=True)
        by_hand += run_one(tiny, [*PROMPT, *by_hand], one).token_ids
    assert by_hand == at_once
