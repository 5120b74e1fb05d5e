"""Promise 2 for every family: alone, together and with a third of the pages, the same bits.

`test_batching` has every parameter and every shape for two families; here each family runs a few
requests, so that what only it has (norms, ropes, windows, caps) is seen to keep bits too. A family
whose forward function is that of a fast one runs with the slow tests.
"""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxinfer import LLM, SamplingParams
from jaxinfer.models.registry import ARCHITECTURES
from tests.end_to_end.conftest import OpenLLM
from tests.end_to_end.engines import assert_drained, bits, run
from tests.support.family_fixtures import read_fixture
from tests.support.tolerances import LOGITS

# Partial rotary embeddings; norms on whole queries and keys, and only on what is added; experts
# with biases, and sinks.
FAST = ("phi3_longrope", "olmo2", "gpt_oss")
SLOW = (
    *("gemma", "gemma2", "llama_odd_heads", "mistral_full", "mistral_window", "mixtral_window"),
    *("phi3", "qwen2_window", "qwen3", "qwen3_moe_listed", "qwen3_moe_stepped", "smollm3"),
    *("gpt_oss_mxfp4", "smollm3_window"),
)
SLOTS, PAGE = 4, 8


def requests(count: int) -> tuple[list[list[int]], list[SamplingParams]]:
    """Some prompts begin alike; greedy and sampled."""
    numbers = random.Random(5)
    shared = [numbers.randrange(3, 64) for _ in range(16)]
    prompts = [
        shared[: numbers.choice((0, 0, 7, 16))]
        + [numbers.randrange(3, 64) for _ in range(numbers.randrange(1, 9))]
        for _ in range(count)
    ]
    params = [
        SamplingParams(
            temperature=numbers.choice((0.0, 1.5)),
            seed=place,
            max_tokens=numbers.randrange(16, 33),
            ignore_eos=True,
            logprobs=3,
        )
        for place in range(count)
    ]
    return prompts, params


def open_few(open_llm: OpenLLM, model: Path, pages: int, **options: Any) -> LLM:
    return open_llm(
        model,
        max_num_seqs=SLOTS,
        prefill_chunk_tokens=8,
        block_size=PAGE,
        max_num_batched_tokens=8,
        max_model_len=64,
        num_gpu_blocks_override=pages,
        admission="optimistic",
        preemption="recompute",
        **options,
    )


@pytest.mark.parametrize(
    "name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_bits_do_not_depend_on_what_runs_beside(
    name: str, open_llm: OpenLLM, tmp_path: Path
) -> None:
    prompts, params = requests(8)
    model = read_fixture(name).write(tmp_path)
    needs = sorted(
        -(-(len(prompt) + (one.max_tokens or 0)) // PAGE)
        for prompt, one in zip(prompts, params, strict=True)
    )
    third = max(needs[-1], sum(needs[-SLOTS:]) // 3)
    with open_few(open_llm, model, third) as llm:
        alone = [
            bits(run(llm, [prompt], [one])[0]) for prompt, one in zip(prompts, params, strict=True)
        ]
        llm.reset_prefix_cache()
        before = llm.get_metrics()["num_preemptions"]
        together = [bits(output) for output in run(llm, prompts, params)]
        assert together == alone
        slides = all(llm.geometry.group_windows)  # then old pages are freed, and none run out
        assert slides or llm.get_metrics()["num_preemptions"] > before
        assert_drained(llm)
        order = random.Random(1).sample(range(len(prompts)), len(prompts))
        again = run(llm, [prompts[n] for n in order], [params[n] for n in order])
        assert [bits(output) for output in again] == [alone[n] for n in order]


def test_every_family_is_there() -> None:
    families = {read_fixture(name).config["model_type"] for name in (*FAST, *SLOW)}
    tested_elsewhere = {"llama", "gemma3_text"}
    registered = {name for one in ARCHITECTURES for name in one.hf_model_types}
    assert registered - tested_elsewhere <= families


def test_windows_free_their_old_pages(open_llm: OpenLLM, tmp_path: Path) -> None:
    """A window of 8 needs 3 pages of 8 tokens, the prompt of 40 and its output would need 8."""
    fixture = read_fixture("mistral_window")
    ids, wanted = fixture.expected["ids1"].tolist(), fixture.expected["logits1"]
    with open_llm(
        fixture.write(tmp_path),
        prefill_chunk_tokens=8,
        block_size=PAGE,
        max_num_batched_tokens=8,
        max_model_len=64,
        num_gpu_blocks_override=3,
    ) as llm:
        assert llm.geometry.group_windows == (8,) and llm.geometry.num_pages == (4,)
        found = llm.logits(ids, decode_from=20)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=LOGITS["float32"])
        longest = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
        completion = run(llm, [ids], longest)[0].outputs[0]
        assert (len(completion.token_ids), completion.finish_reason) == (24, "length")
        assert_drained(llm)
