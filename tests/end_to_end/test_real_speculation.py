"""48 prompts on SmolLM2 and Gemma 3: with drafts the same tokens, and the same bits of each."""

import pydoc_data.topics
from typing import Any

import pytest

from jaxinfer import LLM, SamplingParams
from tests.end_to_end.conftest import OpenLLM
from tests.end_to_end.engines import assert_drained, bits, run
from tests.support.demo import demo_path

pytestmark = [pytest.mark.weights, pytest.mark.slow]

PROMPTS = 48
SLOTS = 8
OPTIONS: dict[str, Any] = {"max_num_seqs": SLOTS, "max_model_len": 512}
ALWAYS: dict[str, Any] = {
    "num_speculative_tokens": 4,
    "adaptive": False,
    "tokens_by_running": ((SLOTS, 4),),
}
# Lookup finds few of these drafts, int8 draws nearly all of them, four layers nearly none.
DRAFTERS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "prompt_lookup_min": 1},
    "int8": {"method": "self", "quantization": "int8"},
    "layers": {"method": "self", "num_layers": 4},
}


def prompts_of(llm: LLM) -> list[list[int]]:
    """Pieces of English technical text, of 8 to 102 tokens."""
    tokenizer = llm.get_tokenizer()
    assert tokenizer is not None
    text = "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    ids = tokenizer.encode(text[:60_000], add_special_tokens=False)
    return [ids[100 * place : 100 * place + 8 + 2 * place] for place in range(PROMPTS)]


def answers(llm: LLM) -> list[Any]:
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=2)
    found = [bits(output) for output in run(llm, prompts_of(llm), params)]
    assert_drained(llm)
    return found


@pytest.fixture(
    scope="module",
    params=[
        (model, dtype) for model in ("smollm2-135m", "gemma3-270m") for dtype in ("float32", "auto")
    ],
    ids="-".join,
)
def plain(request: pytest.FixtureRequest, open_llm: OpenLLM) -> tuple[Any, str, list]:
    model, dtype = request.param
    with open_llm(demo_path(model), dtype=dtype, **OPTIONS) as llm:
        expected = answers(llm)
    return demo_path(model), dtype, expected


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_text_has_the_same_bits_with_drafts(
    plain: tuple[Any, str, list], open_llm: OpenLLM, drafter: str
) -> None:
    """Promise 6."""
    path, dtype, expected = plain
    config = {**ALWAYS, **DRAFTERS[drafter]}
    with open_llm(path, dtype=dtype, **OPTIONS, speculative_config=config) as llm:
        assert answers(llm) == expected
        metrics = llm.get_metrics()
    assert metrics["spec_decode_num_draft_tokens"] > PROMPTS
    # Four layers of Gemma agree with all of them never.
    assert metrics["spec_decode_num_accepted_tokens"] > 0 or drafter == "layers"
