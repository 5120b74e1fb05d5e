"""Windows and ropes of each layer, as the families' config.json files say them."""

import json
from pathlib import Path

import pytest

from jaxinfer.checkpoint.hf_config import read_hf_config
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.errors import CheckpointError, UnsupportedError
from tests.support.tiny_models import TINY_CONFIG, without


def read(folder: Path, config: dict) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(config))
    return read_hf_config(folder)[0]


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_ropes_by_kind_of_layer_are_refused_where_there_is_one(tmp_path: Path, family: str) -> None:
    """They ran with a theta of 10000 and without their scaling."""
    base = without(TINY_CONFIG, "attention_bias", "mlp_bias") | {"model_type": family}
    entry = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 5e5}
    nested = {"rope_parameters": {"full_attention": entry}}
    kinds = {"layer_types": ["full_attention"] * 2}
    with pytest.raises(UnsupportedError, match="'full_attention'.*one rope for all layers"):
        read(tmp_path, base | nested | kinds)


@pytest.mark.parametrize(
    ("family", "change", "told"),
    [
        ("qwen2", {"layer_types": ["full_attention", "chunked_attention"]}, "chunked_attention"),
        ("gemma2", {"hidden_activation": "relu2"}, "hidden_activation='relu2'"),
        ("gemma", {"hidden_act": "silu_and_mul"}, "hidden_act='silu_and_mul'"),
        ("qwen3", {"hidden_act": "gelu"}, "hidden_act='gelu'"),
    ],
)
def test_kinds_that_are_not_run(tmp_path: Path, family: str, change: dict, told: str) -> None:
    windows = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}
    base = without(TINY_CONFIG, "attention_bias", "mlp_bias") | {"model_type": family}
    with pytest.raises(UnsupportedError, match=told):
        read(tmp_path, base | (windows if family == "qwen2" else {}) | change)


@pytest.mark.parametrize("family", ["qwen2", "smollm3"])
def test_kinds_of_layers_are_read_where_no_window_is_used(tmp_path: Path, family: str) -> None:
    """A kind that is not run changes what a model computes, whatever the flag says."""
    base = without(TINY_CONFIG, "attention_bias", "mlp_bias") | {"model_type": family}
    kinds = {"use_sliding_window": False, "layer_types": ["linear_attention"] * 2}
    with pytest.raises(UnsupportedError, match="linear_attention"):
        read(tmp_path, base | kinds)


@pytest.mark.parametrize("family", ["mistral", "phi3", "mixtral"])
def test_layers_that_all_slide_or_none(tmp_path: Path, family: str) -> None:
    """`layer_types` was ignored there, and full layers slid."""
    base = without(TINY_CONFIG, "attention_bias", "mlp_bias") | {"model_type": family}
    base |= {"num_local_experts": 4} if family == "mixtral" else {}
    full, sliding = "full_attention", "sliding_attention"
    for kinds, window in (([sliding] * 2, 16), ([full] * 2, None)):
        config = read(tmp_path, base | {"layer_types": kinds, "sliding_window": window})
        assert config.windows == (window or 0,) * 2
    for kinds, window in (([sliding, full], 16), ([full] * 2, 16), ([sliding] * 2, None)):
        with pytest.raises(UnsupportedError, match="layer_types has .* of 2 layers slide"):
            read(tmp_path, base | {"layer_types": kinds, "sliding_window": window})


@pytest.mark.parametrize(
    ("family", "change", "told"),
    [
        ("mistral", {"sliding_window": 16.7}, "sliding_window=16.7"),
        ("mistral", {"sliding_window": "16"}, "sliding_window='16'"),
        ("mistral", {"sliding_window": -16}, "sliding_window=-16"),
        ("smollm3", {"no_rope_layer_interval": 0}, "no_rope_layer_interval=0"),
        ("smollm3", {"no_rope_layers": [2, "x"]}, "no_rope_layers has 2"),
        ("gemma3_text", {"sliding_window_pattern": 0}, "sliding_window_pattern=0"),
        ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar=0"),
        ("gemma2", {"query_pre_attn_scalar": -4}, "query_pre_attn_scalar=-4"),
        ("gemma2", {"final_logit_softcapping": float("nan")}, "final_logit_softcapping=nan"),
    ],
)
def test_numbers_of_a_family_that_cannot_be(
    tmp_path: Path, family: str, change: dict, told: str
) -> None:
    """They were cut to integers, or ended in a ZeroDivisionError."""
    base = without(TINY_CONFIG, "attention_bias", "mlp_bias") | {"model_type": family}
    with pytest.raises(CheckpointError, match=told):
        read(tmp_path, base | change)


def test_windows_of_the_families(tmp_path: Path) -> None:
    base = without(TINY_CONFIG, "mlp_bias") | {"num_hidden_layers": 4, "sliding_window": 8}
    found = {
        family: read(tmp_path, base | {"model_type": family} | change).windows
        for family, change in {
            "mistral": {},
            "qwen2": {"use_sliding_window": True, "max_window_layers": 3, "attention_bias": True},
            "qwen3": {},
            "gemma2": {},
            "phi3": {},
            "smollm3": {"use_sliding_window": True},
        }.items()
    }
    assert found == {
        "mistral": (8, 8, 8, 8),
        "qwen2": (0, 0, 0, 8),
        "qwen3": (0, 0, 0, 0),
        "gemma2": (8, 0, 8, 0),
        "phi3": (8, 8, 8, 8),
        "smollm3": (0, 0, 0, 8),
    }
    assert read(tmp_path, base | {"model_type": "mistral", "sliding_window": None}).windows == (
        (0,) * 4
    )


def test_layers_without_a_rope(tmp_path: Path) -> None:
    base = TINY_CONFIG | {"model_type": "smollm3", "num_hidden_layers": 4}
    assert read(tmp_path, base).layer_ropes == (0, 0, 0, None)
    listed = base | {"no_rope_layers": [0, 1, 1, 0]}
    assert read(tmp_path, listed).layer_ropes == (None, 0, 0, None)
    with pytest.raises(CheckpointError, match="no_rope_layers has 1 entries for 4 layers"):
        read(tmp_path, base | {"no_rope_layers": [1]})
