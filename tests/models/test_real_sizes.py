"""Parameters of well-known models, counted from their sizes: as many as their makers publish.

tests/data/configs holds what their config.json says of the architecture.
"""

from pathlib import Path

import jax
import pytest

from jaxinfer.checkpoint.hf_config import read_hf_config
from jaxinfer.checkpoint.leaf_match import num_elements

CONFIGS = Path(__file__).parents[1] / "data/configs"
PARAMETERS = {
    "Llama-3.1-8B": 8_030_261_248,
    "Mistral-7B-v0.1": 7_241_732_096,
    "Mixtral-8x7B-v0.1": 46_702_792_704,
    "OLMo-2-7B": 7_298_617_344,
    "Phi-3-medium-4k": 13_960_238_080,
    "Phi-3-mini-4k": 3_821_079_552,
    "Phi-4-mini": 3_836_021_760,
    "Qwen2.5-32B": 32_763_876_352,
    "Qwen2.5-7B": 7_615_616_512,
    "Qwen3-30B-A3B": 30_532_122_624,
    "Qwen3-32B": 32_762_123_264,
    "Qwen3-8B": 8_190_735_360,
    "SmolLM3-3B": 3_075_098_624,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-12b": 11_766_034_176,
    "gemma-3-1b": 999_885_952,
    "gemma-7b": 8_537_680_896,
    "gpt-oss-20b": 20_914_757_184,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_published_parameter_counts(name: str) -> None:
    config, architecture, _ = read_hf_config(CONFIGS / name)
    assert num_elements(jax.tree.leaves(architecture.leaves(config))) == PARAMETERS[name]


def test_every_config_is_counted() -> None:
    assert {path.parent.name for path in CONFIGS.glob("*/config.json")} == set(PARAMETERS)
