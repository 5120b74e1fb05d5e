"""The fixed scales of an fp8 cache: the checkpoint's whole, 1 with a warning, or a refusal."""

import logging
from typing import Any

import pytest

from jaxinfer.engine.kv_scales import fixed_kv_scales
from jaxinfer.errors import CheckpointError
from tests.support.records import model_config

MODEL = model_config()  # two layers, two kv heads
ONE: Any = ((0.05,), (0.02,))


def test_a_checkpoint_s_scales_are_taken() -> None:
    """One for all heads, or one a head."""
    found = {0: ONE, 1: ((0.1, 0.2), (0.3,))}
    assert fixed_kv_scales("fp8", MODEL, found) == (ONE, found[1])


@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "int8", "int8_key_only"])
def test_other_caches_leave_them_alone(kv_dtype: str) -> None:
    assert fixed_kv_scales(kv_dtype, MODEL, {0: ONE, 1: ONE}) == ()


def test_without_scales_all_are_one_and_a_warning_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "jaxinfer"):
        assert fixed_kv_scales("fp8", MODEL, {}) == ()
    (record,) = caplog.records
    assert "k_scale" in record.message and "every scale is 1" in record.message


def test_layers_without_scales_are_named() -> None:
    with pytest.raises(CheckpointError, match="lacks those of layer 1; .*kv_cache_dtype='int8'"):
        fixed_kv_scales("fp8", MODEL, {0: ONE})


def test_scales_of_other_heads_are_refused_by_name() -> None:
    found = {0: ONE, 1: ((1.0,), (1.0, 1.0, 1.0))}
    with pytest.raises(
        CheckpointError, match="layers.1.self_attn.v_scale' holds 3 .* takes 1 or 2"
    ):
        fixed_kv_scales("fp8", MODEL, found)
