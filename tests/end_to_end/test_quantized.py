"""Engines with packed weights: prefill and decode, alone and together, and rounding at load."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxinfer import SamplingParams
from tests.end_to_end.conftest import OpenLLM
from tests.end_to_end.engines import bits, run
from tests.support.tiny_models import write_tiny_gguf

PROMPTS = [[(7 * at * (row + 3) + row) % 320 for at in range(5 + 9 * row)] for row in range(4)]
OPTIONS: dict[str, Any] = {"max_num_batched_tokens": 16, "max_num_seqs": 4}
PARAMS = SamplingParams(temperature=0.8, max_tokens=6, seed=3, ignore_eos=True, logprobs=2)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TINY with four kinds of blocks."""
    types = {"attn_q": "Q4_0", "attn_v": "Q4_1", "ffn_up": "Q8_0", "ffn_down": "Q5_1"}
    return write_tiny_gguf(tmp_path_factory.mktemp("mixed") / "m.gguf", types=types)


def test_packed_weights_in_the_engine(mixed: Path, open_llm: OpenLLM) -> None:
    """Bit for bit: packed and decoded, prefill and decode, alone and together."""
    found = {}
    for weights in ("packed", "dequantized"):
        with open_llm(mixed, weights=weights, **OPTIONS) as llm:
            logits = [llm.logits(PROMPTS[3]), llm.logits(PROMPTS[3], decode_from=4)]
            np.testing.assert_array_equal(logits[0], logits[1])
            together = [bits(output) for output in run(llm, PROMPTS, PARAMS)]
            alone = [bits(run(llm, [prompt], PARAMS)[0]) for prompt in PROMPTS]
            assert together == alone
            found[weights] = logits[0], together
    np.testing.assert_array_equal(found["packed"][0], found["dequantized"][0])
    assert found["packed"][1] == found["dequantized"][1]


def test_rounding_at_load(tiny_folder: Path, open_llm: OpenLLM) -> None:
    """Near the float model, not equal to it."""
    asked = {"method": "int8", "float_ends": 0}
    with open_llm(tiny_folder, **OPTIONS) as llm:
        plain = llm.logits(PROMPTS[3])
    with open_llm(tiny_folder, quantization=asked, weights="packed", **OPTIONS) as llm:
        rounded = llm.logits(PROMPTS[3])
    assert 0 < np.abs(rounded - plain).max() < 0.1 * np.abs(plain).max()
