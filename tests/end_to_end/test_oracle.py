"""Logits, decode path and greedy tokens against transformers in float32 (tests/data)."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from jaxinfer import LLM, SamplingParams
from jaxinfer.checkpoint.hf_config import read_hf_config
from tests.end_to_end.conftest import OpenLLM
from tests.end_to_end.engines import run_one
from tests.support.tolerances import LOGITS, MIN_MARGIN

DATA = Path(__file__).parents[1] / "data"
FLOAT = sorted(path.parent for path in DATA.glob("float/*/config.v4.json"))
QUANT = sorted(path.parent for path in DATA.glob("quant/*/model.gguf"))
ONE_PROGRAM = {"max_num_batched_tokens": 16}  # one prefill program, to compile less
TOLERANCE = LOGITS["float32"]


def test_the_data_is_there() -> None:
    assert len(FLOAT) == 9
    assert len(QUANT) == 25


def expected_of(folder: Path) -> Mapping[str, np.ndarray]:
    return np.load(folder / "expected.npz")


def check_logits(llm: LLM, expected: Mapping[str, np.ndarray]) -> None:
    """Both prompts: all through prefill, then the last part through decode steps."""
    for prompt in ("0", "1"):
        token_ids = expected[f"ids{prompt}"].tolist()
        for decode_from in (None, 3, len(token_ids) // 2):
            logits = llm.logits(token_ids, decode_from=decode_from)
            assert logits.dtype == np.float32
            np.testing.assert_allclose(logits, expected[f"logits{prompt}"], rtol=0, atol=TOLERANCE)


def check_greedy(llm: LLM, expected: Mapping[str, np.ndarray]) -> None:
    for prompt in ("0", "1"):
        wanted, margin = expected[f"greedy{prompt}"].tolist(), expected[f"margin{prompt}"]
        greedy = SamplingParams(temperature=0, max_tokens=len(wanted), ignore_eos=True)
        drawn = run_one(llm, expected[f"ids{prompt}"].tolist(), greedy).token_ids
        sure = int(np.argmax(margin < MIN_MARGIN)) if (margin < MIN_MARGIN).any() else len(wanted)
        assert sure > 0
        assert drawn[:sure] == wanted[:sure]


@pytest.mark.parametrize("folder", FLOAT, ids=lambda path: path.name)
def test_float_models(folder: Path, open_llm: OpenLLM, tmp_path: Path) -> None:
    """Both generations of config.json give one `ModelConfig`: then one engine stands for both."""
    older = shutil.copytree(folder, tmp_path / "v4")
    (older / "config.v4.json").rename(older / "config.json")
    assert read_hf_config(older)[0] == read_hf_config(folder)[0]
    expected = expected_of(folder)
    with open_llm(folder, **ONE_PROGRAM) as llm:
        check_logits(llm, expected)
        check_greedy(llm, expected)


def test_the_two_generations_spell_their_configs_differently() -> None:
    """Otherwise the test above would compare a file with itself."""
    for folder in FLOAT:
        newer, older = (
            json.loads((folder / name).read_text()) for name in ("config.json", "config.v4.json")
        )
        assert "rope_parameters" in newer
        assert "rope_parameters" not in older


@pytest.mark.parametrize("folder", QUANT, ids=lambda path: path.name)
def test_quantized_gguf_files(folder: Path, open_llm: OpenLLM) -> None:
    """Weights are dequantized at load; the oracle is float32 on the same dequantized weights."""
    with open_llm(folder / "model.gguf", **ONE_PROGRAM) as llm:
        check_logits(llm, expected_of(folder))
