"""Every dense family against transformers, on fixtures of a few kilobytes (tests/data/families)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxinfer import LLM
from jaxinfer.checkpoint.hf_config import read_hf_config
from tests.support.family_fixtures import Fixture, fixture_names, read_fixture
from tests.support.family_gguf import has_gguf_form, write_family_gguf
from tests.support.tolerances import LOGITS

NAMES = fixture_names()


@pytest.fixture(params=NAMES)
def fixture(request: pytest.FixtureRequest) -> Fixture:
    return read_fixture(request.param)


def context_for(folder: Path, ids: list[int]) -> int | None:
    """Ropes of two regimes are in transformers chosen by the length of the text."""
    default = read_hf_config(folder)[0].default_context
    return None if len(ids) <= default else len(ids)


def test_both_generations_of_a_config_are_one_model(fixture: Fixture, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(fixture.config))
    newer = read_hf_config(tmp_path)[0]
    (tmp_path / "config.json").write_text(json.dumps(fixture.older))
    assert read_hf_config(tmp_path)[0] == newer
    assert "rope_parameters" in fixture.config and "rope_theta" in fixture.older


def test_logits_are_those_of_transformers(
    fixture: Fixture, tmp_path: Path, forward_logits: Any
) -> None:
    folder = fixture.write(tmp_path)
    for prompt in "01":
        ids = fixture.expected[f"ids{prompt}"].tolist()
        found = forward_logits(folder, ids, max_model_len=context_for(folder, ids))
        wanted = fixture.expected[f"logits{prompt}"]
        np.testing.assert_allclose(found, wanted, rtol=0, atol=LOGITS["float32"])


@pytest.mark.parametrize("name", [n for n in NAMES if has_gguf_form(read_fixture(n))])
def test_a_gguf_file_is_its_folder(name: str, tmp_path: Path, forward_logits: Any) -> None:
    """Names and layouts are those of the gguf package, the logits those of transformers."""
    fixture = read_fixture(name)
    path = write_family_gguf(tmp_path / "model.gguf", fixture)
    folder = fixture.write(tmp_path / "hf")
    ids = fixture.expected["ids1"].tolist()
    context = context_for(folder, ids)
    found = forward_logits(path, ids, max_model_len=context)
    wanted = fixture.expected["logits1"]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=LOGITS["float32"])


@pytest.mark.slow
def test_decode_steps_give_them_too(fixture: Fixture, tmp_path: Path) -> None:
    """Prefill in chunks below the window, then decode steps past it."""
    folder = fixture.write(tmp_path)
    for prompt in "01":
        ids = fixture.expected[f"ids{prompt}"].tolist()
        wanted = fixture.expected[f"logits{prompt}"]
        settings: dict[str, Any] = {"max_model_len": context_for(folder, ids)}
        settings |= {"prefill_chunk_tokens": 4, "block_size": 4, "max_num_batched_tokens": 4}
        with LLM(folder, dtype="float32", max_num_seqs=2, **settings) as llm:
            for decode_from in (None, 3, len(ids) // 2):
                found = llm.logits(ids, decode_from=decode_from)
                np.testing.assert_allclose(found, wanted, rtol=0, atol=LOGITS["float32"])


@pytest.mark.parametrize("name", ["llama_dynamic", "phi3_longrope"])
def test_a_longer_context_has_other_frequencies(
    name: str, tmp_path: Path, forward_logits: Any
) -> None:
    """And a shorter one those of short texts, whatever the model could hold."""
    fixture = read_fixture(name)
    folder, ids = fixture.write(tmp_path), fixture.expected["ids0"].tolist()
    short = forward_logits(folder, ids)
    np.testing.assert_array_equal(short, forward_logits(folder, ids, max_model_len=32))
    assert np.abs(short - forward_logits(folder, ids, max_model_len=40)).max() > 0.01
