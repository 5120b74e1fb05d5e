"""Promise 11: NaN or infinity in the logits ends that row with an error; the others go on.

Weights are poisoned in the runner, since a checkpoint that holds NaN is refused at load (BB-41).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxinfer import LLM, SamplingParams
from jaxinfer.errors import RequestError
from tests.end_to_end.conftest import OpenLLM
from tests.end_to_end.engines import WINDOWED, assert_drained, bits, run, run_one
from tests.end_to_end.random_requests import everything
from tests.support.tiny_models import write_tiny

POISON = 300
GOOD = [[1, 2, 3], list(range(70)), [9] * 17]
PARAMS = SamplingParams(temperature=0, max_tokens=10, logprobs=2, ignore_eos=True)


@contextmanager
def poisoned(llm: LLM, token: int, value: float = float("nan")) -> Iterator[None]:
    """The embedding of one token is not finite; pages that sound weights filled are forgotten."""
    runner = llm.engine.runner
    llm.reset_prefix_cache()
    sound = runner.params
    embedding = np.array(sound["embedding"])
    embedding[token] = value
    runner.params = {**sound, "embedding": jax.device_put(embedding)}
    try:
        yield
    finally:
        runner.params = sound
        llm.reset_prefix_cache()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_one_row_ends_and_the_others_go_on(tiny: LLM, value: float) -> None:
    alone = [bits(output) for output in run(tiny, GOOD, PARAMS)]
    with poisoned(tiny, POISON, value):
        outputs = run(tiny, [GOOD[0], [5, POISON, 6], *GOOD[1:]], PARAMS)
        assert [bits(outputs[place]) for place in (0, 2, 3)] == alone
        bad = outputs[1]
        assert bad.error is not None and "NaN or Inf" in bad.error
        assert (bad.outputs[0].finish_reason, bad.outputs[0].token_ids) == ("error", [])
        assert_drained(tiny)
        # The pages that held NaN are somebody else's now.
        assert [bits(output) for output in run(tiny, GOOD, PARAMS)] == alone


def test_the_token_that_pads_may_be_poisoned(tiny: LLM) -> None:
    """Padding is token 0: its keys and values go to the null page, which nobody reads."""
    prompts = [[1, 2, 3], list(range(1, 71)), [9] * 17]
    alone = [bits(output) for output in run(tiny, prompts, PARAMS)]
    with poisoned(tiny, 0):
        assert [bits(output) for output in run(tiny, prompts, PARAMS)] == alone


def test_what_a_window_has_left_behind_may_be_poisoned(open_llm: OpenLLM, tmp_path: Path) -> None:
    """Its pages are freed: the table points to the null page, where padding left NaN."""
    folder = write_tiny(tmp_path, **WINDOWED)
    prompts = [list(range(1, 150)), [9] * 40]
    params = SamplingParams(temperature=0, max_tokens=40, logprobs=1, ignore_eos=True)
    with open_llm(folder, max_num_batched_tokens=16) as llm:
        alone = [bits(output) for output in run(llm, prompts, params)]
        with poisoned(llm, 0):
            assert [bits(output) for output in run(llm, prompts, params)] == alone


def test_a_row_that_goes_wrong_later_keeps_its_text(tiny: LLM) -> None:
    sound = run_one(tiny, GOOD[0], PARAMS)
    drawn = sound.token_ids
    third = drawn[2]
    assert third not in GOOD[0] and drawn.index(third) == 2
    with poisoned(tiny, third):
        (output,) = run(tiny, [GOOD[0]], PARAMS)
        completion = output.outputs[0]
        assert completion.token_ids == drawn[:3]
        assert completion.finish_reason == "error"
        assert output.error is not None and "6 tokens" in output.error
        assert completion.logprobs == (sound.logprobs or [])[:3]
        deltas = list(tiny.stream([GOOD[0]], PARAMS))
        assert sum((delta.token_ids for delta in deltas), []) == drawn[:3]
        assert deltas[-1].error == output.error
        assert "".join(delta.text for delta in deltas) == completion.text


def test_samples_of_one_prompt_fail_together(tiny: LLM) -> None:
    with poisoned(tiny, POISON):
        params = SamplingParams(temperature=1.0, n=3, max_tokens=4)
        (output,) = run(tiny, [[POISON]], params)
    assert [one.finish_reason for one in output.outputs] == ["error"] * 3
    assert output.error is not None


def test_a_draft_that_is_no_number_ends_nobody(
    open_llm: OpenLLM, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its values have weight 0 before it, and 0 · NaN is NaN: the step without it decides."""
    speculative = {"method": "ngram", "num_speculative_tokens": 3, "adaptive": False}
    penalised = replace(PARAMS, presence_penalty=1.0, repetition_penalty=1.2)
    with open_llm(tiny_folder, max_num_batched_tokens=16, speculative_config=speculative) as llm:
        drafter = llm.engine._drafter
        assert drafter is not None
        monkeypatch.setattr(drafter, "drafts", lambda request, most: ())
        alone = [bits(output) for output in run(llm, GOOD[:2], [PARAMS, penalised])]
        monkeypatch.setattr(drafter, "drafts", lambda request, most: (1, POISON)[:most])
        with poisoned(llm, POISON):
            assert [bits(one) for one in run(llm, GOOD[:2], [PARAMS, penalised])] == alone
            assert drafter.counts.num_drafts > 4
            # What fails without drafts fails with them.
            third = alone[0][0][2][2]
        with poisoned(llm, third):
            (output,) = run(llm, GOOD[:1], PARAMS)
            assert output.outputs[0].finish_reason == "error"
            assert output.outputs[0].token_ids == alone[0][0][2][:3]
            assert_drained(llm)


@pytest.mark.parametrize("n", [1, 3])
def test_nan_in_a_prompt_whose_log_probabilities_are_wanted(tiny: LLM, n: int) -> None:
    """Found while they are taken, in the middle of the prompt: every completion ends there."""
    params = SamplingParams(temperature=1.0, seed=1, n=n, max_tokens=4, prompt_logprobs=1)
    prompts = [GOOD[1], [*range(20), POISON, *range(40)], GOOD[0]]
    (first, _, third) = [everything(output) for output in run(tiny, prompts, params)]
    with poisoned(tiny, POISON):
        outputs = run(tiny, prompts, params)
        assert [everything(outputs[0]), everything(outputs[2])] == [first, third]
        bad = outputs[1]
        assert bad.error is not None and "NaN or Inf" in bad.error
        assert [one.finish_reason for one in bad.outputs] == ["error"] * n
        deltas = list(tiny.stream(prompts, params))
        ended = [delta.index for delta in deltas if delta.error is not None]
        assert sorted(ended) == list(range(n))
        (score,) = tiny.score([prompts[1]], use_tqdm=False)
        assert score.error is not None and "NaN or Inf" in score.error
        assert_drained(tiny)


def test_strict_raises(tiny: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny.engine, "ask", replace(tiny.engine.ask, strict=True))
    with poisoned(tiny, POISON):
        with pytest.raises(RequestError, match="NaN or Inf"):
            run(tiny, [GOOD[0], [POISON]], PARAMS)
        with pytest.raises(RequestError, match="NaN or Inf"):
            list(tiny.stream([GOOD[0], [POISON]], PARAMS))
