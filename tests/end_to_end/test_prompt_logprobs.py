"""Log-probabilities of prompts: one a token, right through chunks, hits, few pages; `score`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxinfer import LLM, RequestOutput, SamplingParams
from jaxinfer.errors import RequestError
from tests.end_to_end.conftest import OpenLLM
from tests.end_to_end.engines import assert_drained, bits, run, set_loop
from tests.end_to_end.random_requests import everything
from tests.support.byte_tokenizer import byte_tokenizer
from tests.support.numpy_model import reference_logits
from tests.support.tiny_models import TINY_CONFIG, random_weights
from tests.support.tolerances import LOGPROBS

LENGTHS = (7, 8, 9, 16, 17)
WEIGHTS = random_weights(TINY_CONFIG)
PARAMS = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=2, ignore_eos=True)


def prompt_of(length: int) -> list[int]:
    return np.random.default_rng(length).integers(0, 320, length).tolist()


def reference(token_ids: Sequence[int]) -> np.ndarray:
    """[T, V] – log-probabilities after each token, in float64."""
    logits = reference_logits(TINY_CONFIG, WEIGHTS, list(token_ids))
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def check_prompt(output: RequestOutput, best: int = 2) -> None:
    """One entry a token, None first, the rest as the reference: the best and the token's own."""
    token_ids, entries = output.prompt_token_ids, output.prompt_logprobs
    assert output.error is None
    assert entries is not None and len(entries) == len(token_ids) and entries[0] is None
    wanted = reference(token_ids)
    for place in range(1, len(token_ids)):
        row, entry, token = wanted[place - 1], entries[place], token_ids[place]
        assert entry is not None and token in entry
        order = np.argsort(-row)[:best].tolist()
        assert list(entry) == order + [token] * (token not in order)
        for one, found in entry.items():
            assert abs(found.logprob - row[one]) < LOGPROBS["float32"]
            assert found.rank == 1 + int((row > row[one]).sum())


@pytest.fixture(scope="module")
def eights(open_llm: OpenLLM, tiny_folder: Path) -> Iterator[LLM]:
    """Chunks and pages of 8 tokens, four pages: enough for one and a half of the longest."""
    options = {"prefill_chunk_tokens": 8, "block_size": 8, "max_num_batched_tokens": 8}
    with open_llm(tiny_folder, **options, num_gpu_blocks_override=4, max_model_len=32) as llm:
        yield llm
        assert_drained(llm)


@pytest.mark.parametrize("admission", ["reserve", "optimistic"])
def test_chunks_hits_and_few_pages(eights: LLM, admission: str) -> None:
    """BB-32 (vllm#6223, #14239, #42245, #41411, #3914), promise 5: warm as cold, and it ends."""
    set_loop(eights, admission=admission)
    prompts = [prompt_of(length) for length in LENGTHS]
    prompts += [prompts[-1][:8] + prompt_of(7)]  # shares a page
    cold = run(eights, prompts, PARAMS)
    for output in cold:
        check_prompt(output)
    found = [everything(output) for output in cold]
    for _ in range(2):
        assert [everything(output) for output in run(eights, prompts, PARAMS)] == found
    alone = [run(eights, [prompt], PARAMS)[0] for prompt in prompts]
    assert [everything(output) for output in alone] == found


def test_they_do_not_come_from_the_cache_but_fill_it(eights: LLM) -> None:
    """BB-32: a prefix in pages has no log-probabilities; what they compute, others may use."""
    prompts = [prompt_of(17)]
    plain = SamplingParams(temperature=0, max_tokens=1)
    (first,) = run(eights, prompts, PARAMS)
    (second,) = run(eights, prompts, PARAMS)
    assert first.num_cached_tokens == second.num_cached_tokens == 0
    check_prompt(second)
    assert run(eights, prompts, plain)[0].num_cached_tokens == 16


def test_chunks_of_several_rows_and_every_count(tiny: LLM) -> None:
    """None, 0 and 20 best, n = 2, long and short prompts in one call; each as alone."""
    counts = (None, 0, 1, 20, 3)
    prompts = [prompt_of(length) for length in (90, 33, 1, 64, 5)]
    params = [
        SamplingParams(prompt_logprobs=count, n=2, seed=1, max_tokens=3, ignore_eos=True)
        for count in counts
    ]
    outputs = run(tiny, prompts, params)
    for output, count in zip(outputs, counts, strict=True):
        if count is None:
            assert output.prompt_logprobs is None
        else:
            check_prompt(output, count)
    alone = [run(tiny, [prompt], one)[0] for prompt, one in zip(prompts, params, strict=True)]
    assert [everything(one) for one in alone] == [everything(one) for one in outputs]


def test_they_change_nothing_of_what_is_drawn(tiny: LLM) -> None:
    with_them = SamplingParams(temperature=1.0, seed=4, max_tokens=5, prompt_logprobs=3)
    without = SamplingParams(temperature=1.0, seed=4, max_tokens=5)
    (one,) = run(tiny, [prompt_of(40)], with_them)
    (other,) = run(tiny, [prompt_of(40)], without)
    assert bits(one) == bits(other)


def score(llm: LLM, prompts: Any) -> list[Any]:
    return llm.score(prompts, use_tqdm=False)


def test_scores_are_the_log_probabilities_of_the_prompt(tiny: LLM) -> None:
    """Also of one token, where nothing precedes it."""
    prompts = [prompt_of(length) for length in (40, 1, 16, 17)]
    for output, prompt in zip(score(tiny, prompts), prompts, strict=True):
        assert output.error is None and output.prompt_token_ids == prompt
        wanted = reference(prompt)[np.arange(len(prompt) - 1), prompt[1:]]
        assert output.token_logprobs[0] is None and len(output.token_logprobs) == len(prompt)
        np.testing.assert_allclose(output.token_logprobs[1:], wanted, atol=LOGPROBS["float32"])
        assert output.cumulative_logprob == pytest.approx(sum(wanted), abs=0.01)


def test_a_score_equals_prompt_logprobs_bit_for_bit(tiny: LLM) -> None:
    prompt = prompt_of(70)
    (scored,) = score(tiny, [prompt])
    (output,) = run(tiny, [prompt], PARAMS)
    assert output.prompt_logprobs is not None
    listed = [
        entry[token].logprob if entry else None
        for entry, token in zip(output.prompt_logprobs, prompt, strict=True)
    ]
    assert scored.token_logprobs == listed


def test_a_prompt_of_exactly_max_model_len_is_scored(eights: LLM) -> None:
    """BB-30 (lm-eval-harness#2880, lighteval#1209): refused though nothing is to be generated.

    One more is that row's error, and the neighbours' scores are as alone.
    """
    prompts = [prompt_of(31), prompt_of(32), prompt_of(33), [], prompt_of(5)]
    outputs = score(eights, prompts)
    assert [output.error is None for output in outputs] == [True, True, False, False, True]
    assert "33" in outputs[2].error and "32" in outputs[2].error
    for place in (0, 1, 4):
        (alone,) = score(eights, [prompts[place]])
        assert alone.token_logprobs == outputs[place].token_logprobs
    assert len(outputs[1].token_logprobs) == 32
    assert outputs[2].token_logprobs == [] and outputs[2].cumulative_logprob is None


def test_scores_of_texts_and_of_nothing(tiny: LLM) -> None:
    (text, ids) = score(tiny, ["abc", [97, 98, 99]])
    assert text.prompt == "abc" and text.token_logprobs == ids.token_logprobs
    assert score(tiny, "abc")[0].token_logprobs == text.token_logprobs
    assert score(tiny, []) == []


def test_a_score_that_fails_raises_where_strict(open_llm: OpenLLM, tiny_folder: Path) -> None:
    tokenizer = byte_tokenizer()
    with open_llm(tiny_folder, max_num_seqs=8, strict=True, tokenizer=tokenizer) as llm:
        with pytest.raises(RequestError, match="no tokens"):
            score(llm, ["abc", []])
        assert score(llm, ["abc"])[0].error is None
        assert_drained(llm)
