"""Kernels are decided for the model and for what drafts for it, before anything is compiled."""

from typing import Any

import pytest

from jaxinfer.config.engine_config import EngineConfig
from jaxinfer.config.expert_config import ExpertConfig
from jaxinfer.config.geometry import Device, DraftNeeds, Geometry
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.engine.build import decide_geometry
from jaxinfer.errors import ConfigError
from pallas_kernels.dispatch import HOPPER, Platform
from tests.support.records import model_config

GPU = Device(platform="gpu", free_bytes=1 << 34)
CPU = Device(platform="cpu", free_bytes=1 << 34)


def sized(hidden: int, head: int) -> ModelConfig:
    return model_config(hidden_size=hidden, head_dim=head)


def decided(draft: ModelConfig | None, kernels: Any = "auto") -> Geometry:
    ask = EngineConfig(kernels=kernels)
    needs = DraftNeeds(model=draft)
    return decide_geometry(ask, sized(256, 64), GPU, platform=HOPPER, drafts=needs)


def test_what_the_draft_model_cannot_take_neither_takes() -> None:
    alone = decided(None)
    assert alone.attention_kernel == "mosaic"
    assert decided(sized(256, 128)).attention_kernel == "mosaic"
    assert decided(sized(256, 80)).attention_kernel == "reference"
    assert decided(sized(256, 64)).norm_kernel == alone.norm_kernel


def test_a_named_kernel_that_the_draft_model_cannot_take_is_refused() -> None:
    with pytest.raises(ConfigError, match="kernels='mosaic'.*80"):
        decided(sized(256, 80), "mosaic")


def with_experts(mlp_size: int) -> ModelConfig:
    experts = ExpertConfig(
        num_experts=4, num_chosen=2, mlp_size=mlp_size, renormalizes=True, is_sparse=(True, True)
    )
    return model_config(architecture="mixtral", hidden_size=256, head_dim=64, experts=experts)


def of_experts(mlp_size: int, kernels: Any = "auto", platform: Platform = HOPPER) -> str:
    ask, device = EngineConfig(kernels=kernels), GPU if platform.kind == "gpu" else CPU
    return decide_geometry(ask, with_experts(mlp_size), device, platform=platform).expert_kernel


def test_experts_run_on_the_kernel_that_takes_them() -> None:
    assert of_experts(128) == "mosaic"
    assert of_experts(80) == "reference"
    with pytest.raises(ConfigError, match="kernels='mosaic'.*grouped_matmul.*80"):
        of_experts(80, "mosaic")
    on_cpu = Platform(kind="cpu")
    assert of_experts(128, platform=on_cpu) == "tiles"
    assert of_experts(128, "simulated", on_cpu) == "simulated"


def olmo2(**changes: Any) -> ModelConfig:
    return model_config(architecture="olmo2", hidden_size=256, qk_norm=True, **changes)


def test_norms_are_chosen_by_the_rows_that_are_normed() -> None:
    """OLMo 2 norms all heads of a token together: [H·D] and [K·D]."""
    ask = EngineConfig(kernels="mosaic")
    fits = olmo2(num_heads=4, num_kv_heads=2, head_dim=64)
    assert decide_geometry(ask, fits, GPU, platform=HOPPER).norm_kernel == "mosaic"
    narrow = olmo2(num_heads=4, num_kv_heads=1, head_dim=64)
    with pytest.raises(ConfigError, match="kernels='mosaic'.*rms_norm.*64"):
        decide_geometry(ask, narrow, GPU, platform=HOPPER)


def written_by(ask: EngineConfig, platform: Platform = HOPPER, **changes: Any) -> str:
    sizes = {"hidden_size": 256, "head_dim": 64, "num_heads": 4, "num_kv_heads": 2}
    device = GPU if platform.kind == "gpu" else CPU
    model = model_config(**(sizes | changes))
    return decide_geometry(ask, model, device, platform=platform).write_kernel


def test_new_keys_are_rotated_and_written_by_the_kernel_that_takes_them() -> None:
    ask = EngineConfig()
    assert written_by(ask) == written_by(ask, qk_norm=True, architecture="qwen3") == "mosaic"
    assert written_by(ask, architecture="olmo2", qk_norm=True) == "reference"  # norms all heads
    assert written_by(ask, num_kv_heads=1) == "reference"
    assert written_by(EngineConfig(kv_cache_dtype="int8")) == "reference"
    assert written_by(EngineConfig(kernels="reference")) == "reference"
    assert written_by(ask, Platform(kind="cpu")) == "reference"


def test_a_norm_with_the_addition_before_it_is_one_kernel_on_hopper() -> None:
    ampere = Platform(kind="gpu", compute_capability=(8, 0))
    found = [
        decide_geometry(EngineConfig(), sized(256, 64), GPU, platform=one).residual_kernel
        for one in (HOPPER, ampere)
    ]
    assert found == ["mosaic", "xla"]
    on_cpu = decide_geometry(EngineConfig(), sized(256, 64), CPU, platform=Platform(kind="cpu"))
    assert on_cpu.residual_kernel == "reference"
