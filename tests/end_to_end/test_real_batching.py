"""Promises 2 and 3 on SmolLM2 with contexts to 2,000 tokens: bits alone, together, preempted."""

import pydoc_data.topics
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from jaxinfer import LLM
from tests.end_to_end.conftest import OpenLLM
from tests.end_to_end.engines import assert_drained, set_loop
from tests.end_to_end.random_requests import Asked, random_requests, run_all, run_each
from tests.support.demo import demo_path

pytestmark = [pytest.mark.weights, pytest.mark.slow]

LENGTHS = (2000, 1500, 1500, 900, 300, 129, 64, 7)
OUTPUT = 40  # tokens: more pages than are kept free for the running requests, so some give way
SHAPES: list[dict[str, Any]] = [
    {"max_num_seqs": 2, "prefill_chunk_tokens": 64, "block_size": 64, "pages": 34},
    {"max_num_seqs": 8, "prefill_chunk_tokens": 128, "block_size": 16, "pages": 145},
    {"max_num_seqs": 32, "prefill_chunk_tokens": 32, "block_size": 32, "pages": None},
]
LOOPS: list[dict[str, Any]] = [
    {"preemption": "swap", "enable_prefix_caching": False, "num_decode_steps": 4},
    {"preemption": "recompute", "enable_prefix_caching": True, "async_scheduling": False},
]


def long_requests(llm: LLM) -> list[Asked]:
    """English prompts that begin alike, with random parameters; log-probabilities for all."""
    tokenizer = llm.get_tokenizer()
    assert tokenizer is not None
    text = "\n".join(pydoc_data.topics.topics.values())[:40_000]
    ids = tokenizer.encode(text, add_special_tokens=False)
    asked = random_requests(8, len(LENGTHS), vocab_size=llm.model_config.vocab_size)
    places = (0, 0, 700, 0, 100, 0, 50, 9)
    return [
        replace(
            one,
            prompt=ids[start : start + length],
            params=replace(
                one.params,
                max_tokens=OUTPUT,
                logprobs=3,
                prompt_logprobs=None if index else 1,
            ),
        )
        for index, (one, start, length) in enumerate(zip(asked, places, LENGTHS, strict=True))
    ]


def open_shape(open_llm: OpenLLM, dtype: str, *, pages: int | None, **options: Any) -> LLM:
    return open_llm(
        demo_path("smollm2-135m"),
        dtype=dtype,
        max_model_len=2048,
        max_num_batched_tokens=options["prefill_chunk_tokens"],
        num_gpu_blocks_override=pages,
        admission="optimistic",
        preemption="swap",
        **options,
    )


@pytest.fixture(scope="module", params=["float32", "auto"])
def alone(
    request: pytest.FixtureRequest, open_llm: OpenLLM
) -> Iterator[tuple[str, list[Asked], list[Any]]]:
    with open_shape(open_llm, request.param, **SHAPES[0]) as llm:
        set_loop(llm, enable_prefix_caching=False)
        asked = long_requests(llm)
        found = run_each(llm, asked)
    yield request.param, asked, found


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape['max_num_seqs']} slots")
def test_long_contexts_have_the_bits_of_a_request_alone(
    open_llm: OpenLLM, alone: tuple[str, list[Asked], list[Any]], shape: dict[str, Any]
) -> None:
    dtype, asked, wanted = alone
    num_preemptions = 0
    with open_shape(open_llm, dtype, **shape) as llm:
        for place, loop in enumerate(LOOPS):
            before = llm.get_metrics()
            set_loop(llm, **{"async_scheduling": True, "num_decode_steps": 1, **loop})
            order = random.Random(place).sample(range(len(asked)), len(asked))
            assert run_all(llm, asked, order) == wanted
            counts = {name: value - before[name] for name, value in llm.get_metrics().items()}
            assert (counts["prefix_cache_hits"] > 0) == loop["enable_prefix_caching"]
            num_preemptions += counts["num_preemptions"]
            assert_drained(llm)
    # Two slots rarely want more than there is, and 32 have pages for all.
    assert num_preemptions > 0 or shape["max_num_seqs"] != 8
