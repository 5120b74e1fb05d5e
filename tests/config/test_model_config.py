"""What a ModelConfig refuses, and that it can be static in a compiled program."""

from typing import Any

import pytest

from jaxinfer.config.rope_config import RopeConfig
from jaxinfer.errors import CheckpointError
from tests.support.records import model_config

SIZES = ["vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads"]
SIZES += ["head_dim", "mlp_size", "max_position"]

DYNAMIC = RopeConfig(scaling="dynamic", factor=2.0, original_max_position=256)


@pytest.mark.parametrize("name", SIZES)
def test_a_size_below_one_is_named(name: str) -> None:
    changes: dict[str, Any] = {name: 0}
    with pytest.raises(CheckpointError, match=f"{name}=0 must be at least 1"):
        model_config(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 4, "num_kv_heads": 3}, "num_heads=4 must be a multiple of num_kv_heads=3"),
        ({"num_heads": 2, "num_kv_heads": 4}, "num_heads=2 must be a multiple"),
        ({"head_dim": 15}, "head_dim=15 must be even"),
        ({"head_dim": 2, "ropes": (DYNAMIC,)}, "dynamic rope scaling with 2 values"),
        ({"num_layers": 3}, "windows has 2 entries for 3 layers"),
        ({"layer_ropes": (0,)}, "layer_ropes has 1 entries for 2 layers"),
        ({"windows": (0, -1)}, "must be 0 .full attention. or more"),
        ({"layer_ropes": (0, 1)}, "must be places in 1 ropes"),
        ({"layer_ropes": (0, -1)}, "must be places in 1 ropes"),
    ],
)
def test_a_contradiction_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        model_config(**changes)


def test_head_size_is_free_of_the_width() -> None:
    """BB-04 (transformers#46211): heads x head_dim need not be the hidden size."""
    config = model_config(hidden_size=48, num_heads=5, num_kv_heads=1, head_dim=16)
    assert config.num_heads * config.head_dim == 80


def test_the_longest_context_is_what_all_ropes_reach() -> None:
    """Gemma 3 scales the rope of some layers, and its length is the stretched one."""
    yarn = RopeConfig(scaling="yarn", factor=4.0, original_max_position=256)
    reach = [model_config(ropes=one).longest_context for one in ((yarn,), (yarn, RopeConfig()))]
    assert reach == [1024, 256] and model_config().longest_context == 256
    endless = RopeConfig(scaling="linear", factor=1e308, original_max_position=256)
    assert model_config(ropes=(endless,)).longest_context == 2**31 - 1


def test_equal_configs_are_one_static_argument() -> None:
    ropes = (RopeConfig(theta=5e5, divisors=(1.0,) * 8),)
    assert hash(model_config(ropes=ropes)) == hash(model_config(ropes=ropes))
    assert model_config(ropes=ropes) != model_config()
