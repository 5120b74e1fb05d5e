"""What is written reads back as the same model."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jaxinfer.checkpoint.hf_config import read_hf_config
from jaxinfer.checkpoint.hf_config_writer import hf_config_of
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.config.rope_config import RopeConfig
from jaxinfer.errors import UnsupportedError
from jaxinfer.layers.rope import rope_frequencies
from tests.support.family_fixtures import fixture_names, read_fixture
from tests.support.tiny_models import TINY_CONFIG

DENSE = [
    name for name in fixture_names() if not name.startswith(("mixtral", "qwen3_moe", "gpt_oss"))
]


def read_back(said: dict[str, Any], folder: Path) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(said))
    return read_hf_config(folder)[0]


@pytest.mark.parametrize("name", [name for name in DENSE if name != "llama_dynamic"])
def test_families(name: str, tmp_path: Path) -> None:
    config = read_back(read_fixture(name).config, tmp_path)
    said = hf_config_of(config, "bfloat16")
    assert said["torch_dtype"] == "bfloat16"
    assert read_back(said, tmp_path) == config


def tiny(tmp_path: Path, **changes: Any) -> ModelConfig:
    return read_back(TINY_CONFIG | changes, tmp_path)


@pytest.mark.parametrize("original", [16, 256])
def test_the_trained_length_of_a_linear_rope_stays(original: int, tmp_path: Path) -> None:
    rope = RopeConfig(scaling="linear", factor=4.0, original_max_position=original)
    config = replace(tiny(tmp_path), ropes=(rope,))
    said = hf_config_of(config, "bfloat16")
    assert ("original_max_position_embeddings" in said["rope_scaling"]) == (original == 16)
    assert read_back(said, tmp_path) == config


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_divisors_of_llama_3_get_their_name_back(factor: float, tmp_path: Path) -> None:
    config = tiny(tmp_path)
    named = RopeConfig(scaling="llama3", factor=factor, original_max_position=8192, theta=5e5)
    wanted = rope_frequencies(named, config.head_dim)
    plain = rope_frequencies(RopeConfig(theta=5e5), config.head_dim)
    divided = RopeConfig(theta=5e5, divisors=tuple((plain / wanted).tolist()))
    said = hf_config_of(replace(config, ropes=(divided,)), "bfloat16")
    assert said["rope_scaling"]["factor"] == factor
    assert read_back(said, tmp_path).ropes == (named,)
    other = RopeConfig(divisors=(1.5,) * (config.head_dim // 2))
    with pytest.raises(UnsupportedError, match="rope_freqs.weight"):
        hf_config_of(replace(config, ropes=(other,)), "bfloat16")


def test_what_has_no_words_is_refused(tmp_path: Path) -> None:
    config = tiny(tmp_path)
    with pytest.raises(UnsupportedError, match="cannot say final_softcap=30.0"):
        hf_config_of(replace(config, final_softcap=30.0), "bfloat16")
    experts = read_back(read_fixture("mixtral_window").config, tmp_path)
    with pytest.raises(UnsupportedError, match="no config.json is written for .*'mixtral'"):
        hf_config_of(experts, "bfloat16")
