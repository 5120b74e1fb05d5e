"""A plan for a GPU that is not here, from config.json alone."""

import json
from pathlib import Path

import pytest

from jaxinfer.checkpoint.hf_config import read_hf_config
from jaxinfer.config.targets import gpu_target
from jaxinfer.errors import CapacityError, ConfigError, UnsupportedError
from jaxinfer.jobs.plan import decode_floor_s, plan_target, target_geometry
from jaxinfer.runner import target as target_module
from tests.support.aot import needs_aot

CONFIG = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return tmp_path


def test_the_kernel_is_chosen_for_the_target_and_not_for_this_machine(folder: Path) -> None:
    config, _, _ = read_hf_config(folder)
    assert target_geometry(config, gpu_target("h200")).attention_kernel == "mosaic"
    assert target_geometry(config, gpu_target("a100")).attention_kernel == "reference"
    wide = target_geometry(config, gpu_target("h200"), dtype="float32")
    assert wide.attention_kernel == "reference"


def test_what_cannot_be_is_refused_before_compiling(folder: Path) -> None:
    with pytest.raises(ConfigError, match="target='h20' must be one of"):
        plan_target(folder, "h20")
    with pytest.raises(CapacityError):
        plan_target(folder, "h200", gpu_memory_utilization=1e-6)


def test_a_missing_compiler_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_module, "missing_compiler", lambda: "it is not installed")
    with pytest.raises(UnsupportedError, match=r"'h200': it is not.*install jaxinfer\[aot\]"):
        plan_target(folder, "h200")


@needs_aot
@pytest.mark.slow
def test_every_program_is_compiled_for_the_target(folder: Path) -> None:
    plan = plan_target(
        folder, "h200", max_num_seqs=8, max_model_len=2048, max_num_batched_tokens=128
    )
    config, _, _ = read_hf_config(folder)
    names = {one.name.split()[0] for one in plan.programs}
    assert {"decode_step", "prefill_step", "head_step"} <= names
    for one in plan.programs:
        if one.name != "head_step":
            assert one.aliased_bytes == plan.cache_bytes + 8 * 4
            assert 0 < one.kernels_a_layer <= 20
    assert {one.name for one in plan.kernels} == {"decode_attention", "prefill_attention"}
    assert not [one for one in plan.kernels if one.spill_bytes]
    assert plan.spare_bytes > 2**36
    alone = decode_floor_s(plan, config, 1, 0)
    assert alone == plan.weights_bytes / plan.target.bandwidth_bytes_per_s
    assert decode_floor_s(plan, config, 8, 2048) > alone
