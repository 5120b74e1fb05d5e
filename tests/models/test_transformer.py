"""Whole forward passes of changed checkpoints against NumPy: cases of the case list."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxinfer.errors import UnsupportedError
from tests.support.numpy_model import reference_logits
from tests.support.tiny_models import TINY_CONFIG, random_weights, write_tiny, write_tiny_gguf
from tests.support.tolerances import LOGITS

IDS = [(7 * i * i + 3) % 320 for i in range(44)]
TOLERANCE = LOGITS["float32"]


def assert_close(got: np.ndarray, wanted: np.ndarray) -> None:
    assert np.abs(got - wanted).max() < TOLERANCE


@pytest.mark.parametrize(
    ("changes", "drop_keys"),
    [
        ({"hidden_size": 48, "num_attention_heads": 5, "num_key_value_heads": 1}, ()),
        ({"head_dim": None}, ()),
        ({}, ("head_dim",)),
    ],
)
def test_heads_times_head_dim_need_not_be_the_width(
    changes: dict[str, Any], drop_keys: tuple[str, ...], tmp_path: Path, forward_logits: Any
) -> None:
    """BB-04 (transformers#46211, vllm-fork#1294)."""
    config = {**TINY_CONFIG, **changes}
    folder = write_tiny(tmp_path / "tiny", drop_keys=drop_keys, **changes)
    assert_close(forward_logits(folder, IDS), reference_logits(config, random_weights(config), IDS))


def test_all_seven_biases_are_used(tmp_path: Path, forward_logits: Any) -> None:
    """BB-05 (vllm#3767, mlc-llm#3494)."""
    config = {**TINY_CONFIG, "attention_bias": True, "mlp_bias": True}
    weights = random_weights(config)
    biases = [name for name in weights if name.endswith(".bias")]
    assert len(biases) == 14 and all(np.abs(weights[name]).min() > 0 for name in biases)
    folder = write_tiny(tmp_path / "tiny", attention_bias=True, mlp_bias=True)
    got = forward_logits(folder, IDS)
    assert_close(got, reference_logits(config, weights, IDS))
    without_biases = {name: value for name, value in weights.items() if name not in biases}
    assert np.abs(got - reference_logits(config, without_biases, IDS)).max() > 0.1


LINEAR = [
    {"type": "linear", "factor": 2},
    {"rope_type": "linear", "factor": 2},
    {"type": "linear", "rope_type": "linear", "factor": 2},
]
PLAIN = [None, {"type": "default"}, {"rope_type": "default"}]
YARN = [
    {"rope_type": "yarn", "factor": 4},
    {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 64},
]


@pytest.mark.parametrize("spellings", [LINEAR, PLAIN, YARN])
def test_spellings_of_one_rope_give_one_result(
    spellings: list[Any], tmp_path: Path, forward_logits: Any
) -> None:
    """BB-06 (vllm#9481, worker-vllm#257)."""
    results = [
        forward_logits(
            write_tiny(tmp_path / str(n), rope_scaling=entry, max_position_embeddings=64), IDS
        )
        for n, entry in enumerate(spellings)
    ]
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)
    plain = reference_logits(TINY_CONFIG, random_weights(TINY_CONFIG), IDS)
    is_plain = spellings is PLAIN
    assert (np.abs(results[0] - plain).max() < TOLERANCE) == is_plain


def test_linear_scaling_divides_the_frequencies(tmp_path: Path, forward_logits: Any) -> None:
    folder = write_tiny(tmp_path / "tiny", rope_scaling=LINEAR[0])
    frequencies = 10000.0 ** -(np.arange(0, 16, 2) / 16) / 2
    wanted = reference_logits(TINY_CONFIG, random_weights(TINY_CONFIG), IDS, frequencies)
    assert_close(forward_logits(folder, IDS), wanted)


def test_an_unknown_rope_is_refused(tmp_path: Path, forward_logits: Any) -> None:
    """BB-06, last case."""
    folder = write_tiny(tmp_path / "tiny", rope_scaling={"rope_type": "su2"})
    with pytest.raises(UnsupportedError, match="'su2'"):
        forward_logits(folder, IDS)


@pytest.mark.parametrize("kv_heads", [2, [2, 2]])
def test_a_gguf_file_is_its_folder(kv_heads: Any, tmp_path: Path, forward_logits: Any) -> None:
    """BB-09, BB-10 (FreeToken#63, llama.cpp#5824): head count as number or list, head present."""
    metadata = {"llama.attention.head_count_kv": kv_heads}
    path = write_tiny_gguf(tmp_path / "tiny.gguf", metadata=metadata)
    wanted = reference_logits(TINY_CONFIG, random_weights(TINY_CONFIG), IDS)
    assert_close(forward_logits(path, IDS), wanted)


def test_a_gguf_file_without_a_head_is_tied(tmp_path: Path, forward_logits: Any) -> None:
    """BB-09 (mistral.rs#798)."""
    path = write_tiny_gguf(tmp_path / "tiny.gguf", drop=("output.weight",))
    weights = random_weights(TINY_CONFIG)
    del weights["lm_head.weight"]
    assert_close(forward_logits(path, IDS), reference_logits(TINY_CONFIG, weights, IDS))


def test_rope_divisors_of_a_gguf_file_divide(tmp_path: Path, forward_logits: Any) -> None:
    """BB-11 a (llama.cpp#8650)."""
    divisors = np.array([1, 1, 2, 4, 8, 8, 8, 8], np.float32)
    path = write_tiny_gguf(tmp_path / "tiny.gguf", add={"rope_freqs.weight": divisors})
    frequencies = 10000.0 ** -(np.arange(0, 16, 2) / 16) / divisors
    wanted = reference_logits(TINY_CONFIG, random_weights(TINY_CONFIG), IDS, frequencies)
    assert_close(forward_logits(path, IDS), wanted)
