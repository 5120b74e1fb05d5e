"""Limits and penalties on SmolLM2, where a word has one spelling after a space and another not."""

from collections.abc import Iterator
from typing import Any

import pytest

from jaxinfer import LLM, SamplingParams
from tests.end_to_end.conftest import OpenLLM
from tests.end_to_end.engines import REAL, assert_drained, run_one
from tests.end_to_end.test_laws import greedy, logits_of
from tests.support.demo import demo_path
from tests.support.tolerances import MIN_MARGIN

pytestmark = pytest.mark.weights


@pytest.fixture(scope="module")
def smol(open_llm: OpenLLM) -> Iterator[LLM]:
    with open_llm(demo_path("smollm2-135m"), **REAL) as llm:
        yield llm
        assert_drained(llm)


def ids_of(llm: LLM, text: str) -> list[int]:
    tokenizer = llm.get_tokenizer()
    assert tokenizer is not None
    return tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize(
    ("prompt", "word"),
    [("The capital of France is", "Paris"), ("Paris, Tokyo, Paris, Tokyo, Paris,", " Tokyo")],
)
def test_a_banned_word_comes_in_neither_spelling(smol: LLM, prompt: str, word: str) -> None:
    """BB-25 (vllm#32557, #23886, TRT-LLM#15706): a token of its own only after a space."""
    free = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    bare = word.strip()
    assert bare in run_one(smol, prompt, free).text
    assert len(ids_of(smol, f" {bare}")) == 1
    banned = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, bad_words=[word])
    assert bare not in run_one(smol, prompt, banned).text


def test_of_several_tokens_only_the_last_is_banned(smol: LLM) -> None:
    """BB-25: and only after its prefix."""
    prompt = "One, two, three, four, five, six, seven, eight, nine, ten, eleven,"
    free = run_one(smol, prompt, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
    tokenizer = smol.get_tokenizer()
    assert tokenizer is not None
    word = tokenizer.decode(free.token_ids[3:6])
    assert len(ids_of(smol, word)) == 3 and ids_of(smol, word) == free.token_ids[3:6]
    banned = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, bad_words=[word])
    limited = run_one(smol, prompt, banned)
    assert limited.token_ids[:5] == free.token_ids[:5]
    assert limited.token_ids[5] != free.token_ids[5] and word not in limited.text


PENALTIES: list[dict[str, Any]] = [
    {"presence_penalty": 2.0, "frequency_penalty": 2.0},
    {"repetition_penalty": 1.5},
]


@pytest.mark.parametrize("penalties", PENALTIES, ids=str)
def test_penalties_after_paris_paris_paris(smol: LLM, penalties: dict[str, Any]) -> None:
    """BB-28 (vllm-metal#69, vllm#1577, TRT-LLM#5623): five steps, as NumPy does them."""
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, **penalties)
    for text in ("Paris Paris Paris", "Paris, Tokyo, Paris, Tokyo, Paris,"):
        prompt = ids_of(smol, text)
        wanted, lead = greedy(logits_of(smol), prompt, params, 5)
        assert lead > MIN_MARGIN
        assert run_one(smol, prompt, params).token_ids == wanted


def test_only_repetition_sees_the_prompt(smol: LLM) -> None:
    """BB-28: the likeliest token was in it; at the first step it is another under repetition."""
    prompt = ids_of(smol, "Paris\n" * 8)
    (free,) = run_one(smol, prompt, SamplingParams(temperature=0, max_tokens=1)).token_ids
    assert free in prompt
    for penalties in PENALTIES:
        params = SamplingParams(temperature=0, max_tokens=1, **penalties)
        (first,) = run_one(smol, prompt, params).token_ids
        assert (first == free) == ("presence_penalty" in penalties)
