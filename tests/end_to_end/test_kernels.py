"""A whole engine on named kernels: simulated on the CPU, and refused where one cannot serve."""

import logging
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from jaxinfer import LLM, SamplingParams
from jaxinfer.engine import build
from jaxinfer.errors import ConfigError
from tests.support.tiny_models import TINY_CONFIG, random_weights, write_hf_folder

WIDE = TINY_CONFIG | {
    "hidden_size": 128,
    "head_dim": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
}
OPTIONS: dict[str, Any] = {
    "max_num_seqs": 2,
    "max_model_len": 64,
    "block_size": 16,
    "prefill_chunk_tokens": 8,
    "max_num_batched_tokens": 8,
    "show_progress": False,
    "quantization": {"method": "int4", "float_ends": 0},
    "weights": "packed",
}
PROMPT = [5, 9, 200, 31, 7, 8, 250, 100, 3]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    weights = random_weights(WIDE, std=0.05)
    return write_hf_folder(tmp_path_factory.mktemp("wide"), WIDE, weights)


def run(folder: Path, **options: Any) -> tuple[list[int], np.ndarray]:
    with LLM(folder, **OPTIONS, **options) as llm:
        if isinstance(options["kernels"], str):
            assert llm.geometry.write_kernel == options["kernels"]
        params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
        (output,) = llm.generate([{"prompt_token_ids": PROMPT}], params)
        return output.outputs[0].token_ids, np.asarray(llm.logits(PROMPT, decode_from=6))


@pytest.fixture
def model(wide: Path, request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """WIDE, or a model like it of a family that norms the heads of queries and keys."""
    if request.param == "llama":
        return wide
    config = WIDE | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
    weights, random = random_weights(WIDE, std=0.05), np.random.default_rng(4)
    for name in ("q_norm", "k_norm"):
        scale = 1 + 0.1 * random.normal(size=64)
        weights[f"model.layers.0.self_attn.{name}.weight"] = scale.astype(np.float32)
    return write_hf_folder(tmp_path, config, weights)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["llama", "qwen3"], indirect=True)
def test_simulated_kernels_give_what_the_reference_gives(model: Path) -> None:
    """Prefill in chunks, decode and packed weights through the kernels, in bfloat16."""
    plain, expected = run(model, kernels="reference")
    tokens, logits = run(model, kernels="simulated")
    difference = np.linalg.norm(logits - expected) / np.linalg.norm(expected)
    assert 0 < difference < 0.02  # bfloat16 activations against float32 ones
    assert tokens == plain


@pytest.mark.parametrize(
    "kernels",
    [
        {"rms_norm": "simulated"},
        pytest.param({"quant_matmul": "simulated", "rms_norm": "xla"}, marks=pytest.mark.slow),
        pytest.param({"paged_attention": "simulated"}, marks=pytest.mark.slow),
    ],
)
def test_one_op_is_simulated_beside_those_of_a_cpu(wide: Path, kernels: dict[str, str]) -> None:
    plain, expected = run(wide, kernels={})
    tokens, logits = run(wide, kernels=kernels)
    difference = np.linalg.norm(logits - expected) / np.linalg.norm(expected)
    assert 0 < difference < 0.02  # as above
    assert tokens == plain


@pytest.mark.parametrize(
    ("config", "options", "reason"),
    [
        (WIDE, {"kernels": "mosaic"}, "kernels='mosaic'.*it is for NVIDIA GPUs, this is a cpu"),
        (WIDE, {"kernels": {"rotate_write": "mosaic"}}, "kernels='rotate_write=mosaic'.*is a cpu"),
        (WIDE, {"kernels": "triton"}, "kernels='triton'.*it is for NVIDIA GPUs, this is a cpu"),
        (TINY_CONFIG, {"kernels": "simulated"}, "kernels='simulated'.*heads have 16 values"),
        (
            WIDE | {"intermediate_size": 96},
            {"kernels": "simulated"},
            "quant_matmul cannot use 'simulated': the matrix has 96",
        ),
    ],
)
def test_kernels_that_cannot_serve_are_refused_before_anything_is_compiled(
    tmp_path: Path, config: dict[str, Any], options: dict[str, Any], reason: str
) -> None:
    folder = write_hf_folder(tmp_path, config, random_weights(config))
    with pytest.raises(ConfigError, match=reason):
        LLM(folder, **OPTIONS, **options)


def test_a_draft_model_that_a_named_kernel_cannot_serve_is_refused_too(
    wide: Path, tmp_path: Path
) -> None:
    narrow = write_hf_folder(tmp_path, TINY_CONFIG, random_weights(TINY_CONFIG))
    drafting = {"method": "draft_model", "model": str(narrow)}
    with pytest.raises(ConfigError, match="kernels='simulated'.*heads have 16 values"):
        LLM(wide, **OPTIONS, kernels="simulated", speculative_config=drafting)


def test_what_runs_without_a_kernel_is_logged(wide: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = OPTIONS | {"kv_cache_dtype": "int8", "block_size": 64, "kernels": "simulated"}
    stop = mock.patch.object(build, "compile_programs", side_effect=KeyboardInterrupt)
    with stop, caplog.at_level(logging.INFO, "jaxinfer"), pytest.raises(KeyboardInterrupt):
        LLM(wide, **options)
    assert "no kernel for rotation and write of keys: pages hold int8" in caplog.text


def test_an_engine_of_one_token_drafts_nothing(wide: Path) -> None:
    options = {**OPTIONS, "max_model_len": 1}
    drafting = {"method": "self", "num_layers": 1}
    params = SamplingParams(temperature=0, max_tokens=1)
    with LLM(wide, **options, speculative_config=drafting) as llm:
        (output,) = llm.generate([{"prompt_token_ids": PROMPT[:1]}], params)
        assert len(output.outputs[0].token_ids) == 1 and output.metrics.num_draft_tokens == 0
