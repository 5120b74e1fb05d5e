"""Parameters of well-known models, counted from their sizes: as many as their makers publish."""

import json
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxinfer.checkpoint.hf_config import read_hf_config
from jaxinfer.checkpoint.leaf_match import num_elements


def sizes(
    model_type: str,
    hidden: int,
    mlp: int,
    layers: int,
    heads: int,
    kv: int,
    vocab: int,
    **more: Any,
) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": vocab,
        **more,
    }


PHI_ROPE = {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
PHI = {"partial_rotary_factor": 0.75, "max_position_embeddings": 131072, "rope_scaling": PHI_ROPE}
GEMMA3 = {"head_dim": 256, "sliding_window": 512}
MODELS = {
    "Llama-3.1-8B": (sizes("llama", 4096, 14336, 32, 32, 8, 128256), 8_030_261_248),
    "Mistral-7B-v0.1": (sizes("mistral", 4096, 14336, 32, 32, 8, 32000), 7_241_732_096),
    "Qwen2.5-7B": (sizes("qwen2", 3584, 18944, 28, 28, 4, 152064), 7_615_616_512),
    "Qwen3-8B": (sizes("qwen3", 4096, 12288, 36, 32, 8, 151936), 8_190_735_360),
    "gemma-7b": (sizes("gemma", 3072, 24576, 28, 16, 16, 256000), 8_537_680_896),
    "gemma-2-9b": (sizes("gemma2", 3584, 14336, 42, 16, 8, 256000), 9_241_705_984),
    "gemma-3-1b": (sizes("gemma3_text", 1152, 6912, 26, 4, 1, 262144, **GEMMA3), 999_885_952),
    "OLMo-2-7B": (sizes("olmo2", 4096, 11008, 32, 32, 32, 100352), 7_298_617_344),
    "Phi-3-mini-4k": (sizes("phi3", 3072, 8192, 32, 32, 32, 32064), 3_821_079_552),
    "Phi-4-mini": (
        sizes("phi3", 3072, 8192, 32, 24, 8, 200064, tie_word_embeddings=True, **PHI),
        3_836_021_760,
    ),
    "SmolLM3-3B": (sizes("smollm3", 2048, 11008, 36, 16, 4, 128256), 3_075_098_624),
}


@pytest.mark.parametrize("name", MODELS)
def test_published_parameter_counts(name: str, tmp_path: Path) -> None:
    raw, count = MODELS[name]
    (tmp_path / "config.json").write_text(json.dumps(raw))
    config, architecture, _ = read_hf_config(tmp_path)
    assert num_elements(jax.tree.leaves(architecture.leaves(config))) == count
