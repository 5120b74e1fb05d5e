"""Kernels are decided for the model and for what drafts for it, before anything is compiled."""

from typing import Any

import pytest

from jaxinfer.config.engine_config import EngineConfig
from jaxinfer.config.geometry import Device, DraftNeeds, Geometry
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.engine.build import decide_geometry
from jaxinfer.errors import ConfigError
from pallas_kernels.dispatch import Platform
from tests.support.records import model_config

HOPPER = Platform(kind="gpu", compute_capability=(9, 0))
GPU = Device(platform="gpu", free_bytes=1 << 34)


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
