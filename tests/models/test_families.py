"""Every dense family against transformers, on fixtures of a few kilobytes (tests/data/families)."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxinfer import LLM
from jaxinfer.checkpoint.checkpoint import open_checkpoint
from jaxinfer.checkpoint.hf_config import read_hf_config
from jaxinfer.checkpoint.load import load_params
from jaxinfer.config.model_config import ModelConfig
from tests.support.family_fixtures import Fixture, fixture_names, read_fixture
from tests.support.family_gguf import has_gguf_form, write_family_gguf
from tests.support.tolerances import LOGITS

NAMES = fixture_names()
# A second fixture of a family: its logits are among the slow tests.
SECOND = (
    *("gemma2_bias", "gemma3", "mistral_full", "mixtral_full", "olmo2_mha", "phi3", "qwen2_yarn"),
    *("qwen3_moe_all", "qwen3_window", "smollm3_window"),
)


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


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in SECOND else ()) for n in NAMES]
)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path, forward_logits: Any) -> None:
    fixture = read_fixture(name)
    folder = fixture.write(tmp_path)
    for prompt in "01":
        ids = fixture.expected[f"ids{prompt}"].tolist()
        found = forward_logits(folder, ids, max_model_len=context_for(folder, ids))
        wanted = fixture.expected[f"logits{prompt}"]
        np.testing.assert_allclose(found, wanted, rtol=0, atol=LOGITS["float32"])


@pytest.mark.parametrize("name", [n for n in NAMES if has_gguf_form(read_fixture(n))])
def test_a_gguf_file_is_its_folder(name: str, tmp_path: Path) -> None:
    """The same config and, to the bit, the same parameters; names and layouts are llama.cpp's."""
    fixture = read_fixture(name)
    path = write_family_gguf(tmp_path / "model.gguf", fixture)
    opened = [open_checkpoint(one) for one in (fixture.write(tmp_path / "hf"), path)]
    folder, file = (one.config for one in opened)
    assert comparable(file) == comparable(folder)
    params = [load_params(one, weight_dtype="float32", show_progress=False) for one in opened]
    assert jax.tree.structure(params[0]) == jax.tree.structure(params[1])
    for one, other in zip(*map(jax.tree.leaves, params), strict=True):
        np.testing.assert_array_equal(one, other)


def comparable(config: ModelConfig) -> ModelConfig:
    """Without what a GGUF file rounds to float32, or has in its tokenizer, and without the name."""
    ropes = tuple(
        replace(
            rope,
            attention_factor=round(rope.attention_factor, 6),
            divisors=tuple(round(value, 6) for value in rope.divisors),
            long_divisors=tuple(round(value, 6) for value in rope.long_divisors),
        )
        for rope in config.ropes
    )
    tokens: dict[str, Any] = {"bos_token_id": None, "eos_token_ids": ()}
    architecture = "llama" if config.architecture == "mistral" else config.architecture
    eps = round(config.norm_eps, 9)
    return replace(config, ropes=ropes, norm_eps=eps, architecture=architecture, **tokens)


@pytest.mark.slow
def test_decode_steps_give_them_too(fixture: Fixture, tmp_path: Path) -> None:
    """Prefill in chunks of the window, then decode steps past it."""
    folder = fixture.write(tmp_path)
    for prompt in "01":
        ids = fixture.expected[f"ids{prompt}"].tolist()
        wanted = fixture.expected[f"logits{prompt}"]
        settings: dict[str, Any] = {"max_model_len": context_for(folder, ids)}
        settings |= {"prefill_chunk_tokens": 8, "block_size": 8, "max_num_batched_tokens": 8}
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
