"""SmolLM2 and Gemma 3 continue six prompts as transformers does, token by token (tests/data/real).

The reference ran in float32 on the dequantized weights with EOS masked, as `min_tokens` does.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxinfer import LLM, CompletionOutput, SamplingParams
from tests.end_to_end.conftest import OpenLLM
from tests.end_to_end.engines import REAL, bits, run
from tests.support.demo import demo_path
from tests.support.tolerances import LOGPROBS, MIN_MARGIN

DATA = Path(__file__).parents[1] / "data" / "real"
MIN_COMPARED = 0.9  # of all tokens, before near ties end the comparisons
MODELS = [
    pytest.param(("smollm2", "smollm2-135m"), id="smollm2"),
    pytest.param(("gemma3", "gemma3-270m"), id="gemma3", marks=pytest.mark.slow),
]
pytestmark = pytest.mark.weights


def oracle_rows(name: str) -> list[dict[str, Any]]:
    return json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))["rows"]


@pytest.fixture(scope="module", params=MODELS)
def real(request: pytest.FixtureRequest, open_llm: OpenLLM) -> Iterator[tuple[LLM, list[dict]]]:
    """A real model in float32 and the rows of its oracle."""
    oracle, demo = request.param
    with open_llm(demo_path(demo), **REAL) as llm:
        yield llm, oracle_rows(oracle)


def test_six_prompts_together(real: tuple[LLM, list[dict]]) -> None:
    """Promise 5: tokens, and their log-probabilities within the tolerance."""
    llm, rows = real
    assert len(rows) == 6
    params = [
        SamplingParams(temperature=0, max_tokens=count, min_tokens=count, logprobs=0)
        for count in (len(row["greedy"]) for row in rows)
    ]
    outputs = run(llm, [row["prompt"] for row in rows], params)
    for row, output in zip(rows, outputs, strict=True):
        assert output.prompt_token_ids == row["prompt_ids"]
    compared = sum(
        compare(row, output.outputs[0]) for row, output in zip(rows, outputs, strict=True)
    )
    assert compared >= MIN_COMPARED * sum(len(row["greedy"]) for row in rows)


def compare(row: dict[str, Any], ours: CompletionOutput) -> int:
    """How many tokens are equal, up to another choice at a near tie."""
    assert ours.logprobs is not None
    steps = zip(row["greedy"], row["margin"], row["logprob"], ours.token_ids, strict=True)
    for step, (token, margin, logprob, drawn) in enumerate(steps):
        if drawn != token and margin < MIN_MARGIN:
            return step
        assert drawn == token, f"token {step} of {row['prompt'][:30]!r}"
        difference = ours.logprobs[step][drawn].logprob - logprob
        assert abs(difference) < LOGPROBS["float32"], f"token {step}: {difference}"
    return len(row["greedy"])


def test_decode_path_gives_the_logits_of_prefill(real: tuple[LLM, list[dict]]) -> None:
    """Bit for bit, in a model with wide rows and a large vocabulary."""
    llm, rows = real
    token_ids = (rows[0]["prompt_ids"] + rows[0]["greedy"])[:40]
    at_once = llm.logits(token_ids)
    np.testing.assert_array_equal(llm.logits(token_ids, decode_from=5), at_once)


def test_a_prompt_alone_gives_the_same_bits(real: tuple[LLM, list[dict]]) -> None:
    llm, rows = real
    params = SamplingParams(temperature=0.8, top_p=0.95, seed=3, max_tokens=8, logprobs=3)
    prompts = [row["prompt"] for row in rows[:4]]
    together = run(llm, prompts, params)
    alone = [run(llm, [prompt], params)[0] for prompt in prompts]
    assert [bits(one) for one in together] == [bits(one) for one in alone]
