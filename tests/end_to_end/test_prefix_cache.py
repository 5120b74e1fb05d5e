"""Prompts that begin alike share pages: the same bits, fewer tokens computed (promise 2)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxinfer import LLM, RequestOptions, SamplingParams
from tests.end_to_end.conftest import OpenLLM
from tests.end_to_end.engines import WINDOWED, assert_drained, bits, run, set_loop
from tests.support.byte_tokenizer import byte_tokenizer
from tests.support.tiny_models import write_tiny

GRAIN = 16  # tokens of a chunk and of a page: hits come in multiples of it
PARAMS = SamplingParams(temperature=0, max_tokens=6, logprobs=2, ignore_eos=True)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 320, length).tolist()


def hits_of(llm: LLM) -> float:
    return llm.get_metrics()["prefix_cache_hits"]


def cached_tokens(llm: LLM, prompts: list[Any], params: Any = PARAMS, **options: Any) -> list[int]:
    outputs = llm.generate(prompts, params, use_tqdm=False, **options)
    return [output.num_cached_tokens for output in outputs]


def test_cold_and_warm_prompts_give_the_same_bits(tiny: LLM) -> None:
    """BB-31 (vllm#7845, #40896, #11186): around the page's end, three times in one call and again.

    A full hit leaves the last token to compute.
    """
    lengths = (15, 16, 17, 31, 32, 33)
    prompts = [prompt_of(length, length) for length in lengths for _ in range(3)]
    set_loop(tiny, enable_prefix_caching=False)
    cold = [bits(output) for output in run(tiny, prompts, PARAMS)]
    assert cached_tokens(tiny, prompts) == [0] * 18
    set_loop(tiny, enable_prefix_caching=True)
    for turn in range(2):
        outputs = run(tiny, prompts, PARAMS)
        assert [bits(output) for output in outputs] == cold
        found = [output.num_cached_tokens for output in outputs]
        assert all(count < len(prompt) for count, prompt in zip(found, prompts, strict=True))
        most = [(length - 1) // GRAIN * GRAIN for length in lengths for _ in range(3)]
        assert found == most or (
            turn == 0 and all(a <= b for a, b in zip(found, most, strict=True))
        )
    metrics = outputs[-1].metrics
    assert metrics.num_cached_tokens == outputs[-1].num_cached_tokens == 32


def test_a_prompt_that_goes_on_from_an_answer_hits_its_pages(tiny: LLM) -> None:
    """Pages written by decode are found too."""
    first = prompt_of(30)
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    (output,) = run(tiny, [first], params)
    following = first + output.outputs[0].token_ids + prompt_of(9, 1)
    assert cached_tokens(tiny, [following]) == [64]
    set_loop(tiny, enable_prefix_caching=False)
    cold = bits(run(tiny, [following], PARAMS)[0])
    set_loop(tiny, enable_prefix_caching=True)
    for prompt in (first, following):
        run(tiny, [prompt], params)
    assert bits(run(tiny, [following], PARAMS)[0]) == cold


def test_the_second_turn_of_a_chat_hits_the_first(open_llm: OpenLLM, tiny_folder: Path) -> None:
    template = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}assistant:"
    tokenizer = byte_tokenizer(chat_templates={"default": template})
    messages = [{"role": "user", "content": "how are you today, and what is new?"}]
    # Letters only: the answer as text must encode to the ids that were drawn.
    params = SamplingParams(temperature=0, max_tokens=20, allowed_token_ids=list(range(97, 123)))
    with open_llm(tiny_folder, max_num_seqs=8, tokenizer=tokenizer) as llm:
        (first,) = llm.chat(messages, params, use_tqdm=False)
        messages += [
            {"role": "assistant", "content": first.outputs[0].text},
            {"role": "user", "content": "and now?"},
        ]
        (second,) = llm.chat(messages, params, use_tqdm=False)
        known = len(first.prompt_token_ids) + 20 - 1  # the last token was never computed
        assert second.num_cached_tokens == known // GRAIN * GRAIN > len(first.prompt_token_ids)


def test_a_reset_forgets_and_a_switch_leaves_out(tiny: LLM) -> None:
    prompts = [prompt_of(70)]
    assert cached_tokens(tiny, prompts) == [0]
    assert cached_tokens(tiny, prompts) == [64]
    tiny.reset_prefix_cache()
    assert cached_tokens(tiny, prompts) == [0]
    alone = RequestOptions(use_prefix_cache=False)
    assert cached_tokens(tiny, prompts, options=alone) == [0]
    assert cached_tokens(tiny, prompts) == [64]
    tiny.reset_prefix_cache()
    assert cached_tokens(tiny, prompts, options=alone) == [0]  # and left nothing for others
    assert cached_tokens(tiny, prompts) == [0]


def test_a_reset_while_requests_run_disturbs_nobody(tiny: LLM) -> None:
    prompts = [prompt_of(70), prompt_of(70), prompt_of(40)]
    wanted = [output.outputs[0].token_ids for output in run(tiny, prompts, PARAMS)]
    found: dict[str, list[int]] = {}
    for delta in tiny.stream(prompts, PARAMS):
        tiny.reset_prefix_cache()
        found.setdefault(delta.request_id, []).extend(delta.token_ids)
    assert [found[key] for key in sorted(found, key=int)] == wanted


@pytest.mark.parametrize("length", [50, 65, 70])
def test_samples_share_the_pages_of_their_prompt(few: LLM, tiny: LLM, length: int) -> None:
    """Copy on write, where the prompt ends inside a page and at its end.

    Each takes four or five of the six pages; the prompt is computed once, also without a cache.
    """
    params = SamplingParams(
        temperature=1.5, seed=3, n=2, max_tokens=10, ignore_eos=True, logprobs=2
    )
    (ample,) = run(tiny, [prompt_of(length)], params)
    set_loop(few, enable_prefix_caching=False)
    before = few.get_metrics()["num_prefill_steps"]
    (shared,) = run(few, [prompt_of(length)], params)
    assert few.get_metrics()["num_prefill_steps"] - before == -(-length // GRAIN)
    assert bits(shared) == bits(ample)
    first, second = shared.outputs
    assert first.token_ids != second.token_ids


def test_hits_and_queries_are_counted_in_tokens(tiny: LLM) -> None:
    before = tiny.get_metrics()
    run(tiny, [prompt_of(70)], PARAMS)
    run(tiny, [prompt_of(70), prompt_of(9, 1)], PARAMS)
    after = tiny.get_metrics()
    assert after["prefix_cache_queries"] - before["prefix_cache_queries"] == 70 + 70 + 9
    assert after["prefix_cache_hits"] - before["prefix_cache_hits"] == 64


@pytest.fixture(scope="module")
def windowed(open_llm: OpenLLM, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """A layer that sees everything and one that sees 20 tokens; few pages."""
    folder = write_tiny(tmp_path_factory.mktemp("windowed"), **WINDOWED)
    options = {"max_num_batched_tokens": 16, "num_gpu_blocks_override": 16}
    with open_llm(folder, **options) as llm:
        yield llm
        assert_drained(llm)


def test_under_a_window_only_what_it_sees_has_to_be_there(windowed: LLM) -> None:
    """Long prompts in turn push each other's pages out; what is found is exact."""
    prompts = [prompt_of(150), prompt_of(150)[:100] + prompt_of(30, 1), prompt_of(120, 2)]
    set_loop(windowed, enable_prefix_caching=False)
    cold = [bits(run(windowed, [prompt], PARAMS)[0]) for prompt in prompts]
    set_loop(windowed, enable_prefix_caching=True)
    hits = hits_of(windowed)
    for place in (0, 0, 1, 2, 1, 0, 2, 2):
        assert bits(run(windowed, [prompts[place]], PARAMS)[0]) == cold[place]
    assert hits_of(windowed) > hits
