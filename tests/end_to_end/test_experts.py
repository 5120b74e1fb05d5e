"""Engines of models with experts: a request's bits do not depend on who else chooses an expert."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxinfer import SamplingParams
from tests.end_to_end.conftest import OpenLLM
from tests.end_to_end.engines import bits, run
from tests.support.tiny_experts import write_mixtral

PROMPTS = [[(7 * at * (row + 3) + row) % 320 for at in range(3 + 8 * row)] for row in range(6)]
PARAMS = SamplingParams(temperature=0.8, max_tokens=20, seed=3, ignore_eos=True, logprobs=2)
SMALL: dict[str, Any] = {"max_num_batched_tokens": 16, "max_num_seqs": 2}
WIDE: dict[str, Any] = {"max_num_batched_tokens": 48, "max_num_seqs": 6}
FEW: dict[str, Any] = {
    "num_gpu_blocks_override": 5,
    "admission": "optimistic",
    "preemption": "recompute",
}


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mixtral(tmp_path_factory.mktemp("mixtral") / "m")


def test_alone_together_and_with_a_third_of_the_pages(mixtral: Path, open_llm: OpenLLM) -> None:
    """Stacks of bfloat16; those of float32 are among the families of `test_families`."""
    with open_llm(mixtral, dtype="auto", **SMALL) as llm:
        alone = [bits(run(llm, [prompt], PARAMS)[0]) for prompt in PROMPTS]
    for options in (WIDE, {**WIDE, **FEW}):
        with open_llm(mixtral, dtype="auto", **options) as llm:
            assert [bits(output) for output in run(llm, PROMPTS, PARAMS)] == alone
            if "num_gpu_blocks_override" in options:
                assert llm.get_metrics()["num_preemptions"] > 0


def test_prefill_and_decode_give_the_same_bits(mixtral: Path, open_llm: OpenLLM) -> None:
    with open_llm(mixtral, **WIDE) as llm:
        logits = [llm.logits(PROMPTS[5], decode_from=start) for start in (None, 2, 30)]
    np.testing.assert_array_equal(logits[0], logits[1])
    np.testing.assert_array_equal(logits[0], logits[2])


def test_experts_rounded_at_load(mixtral: Path, open_llm: OpenLLM) -> None:
    """Packed and decoded alike, near the float model, not equal to it; the router stays float."""
    asked = {"method": "int8", "float_ends": 0}
    with open_llm(mixtral, **SMALL) as llm:
        plain = llm.logits(PROMPTS[4])
    found = {}
    for weights in ("packed", "dequantized"):
        with open_llm(mixtral, quantization=asked, weights=weights, **SMALL) as llm:
            found[weights] = llm.logits(PROMPTS[4])
            together = [bits(output) for output in run(llm, PROMPTS[:3], PARAMS)]
            assert together == [bits(run(llm, [prompt], PARAMS)[0]) for prompt in PROMPTS[:3]]
    np.testing.assert_array_equal(found["packed"], found["dequantized"])
    error = np.abs(found["packed"] - plain)  # single tokens may choose other experts
    assert 0 < np.median(error) < 0.05 * np.median(np.abs(plain))
