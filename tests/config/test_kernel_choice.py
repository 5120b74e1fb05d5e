"""Kernels for all ops or one by one: one form, wrong names refused with the nearest."""

from typing import Any

import pytest

from jaxinfer.config.engine_config import EngineConfig, engine_config
from jaxinfer.config.kernel_choice import OPS, asked_of, kernel_choice, named_ops
from jaxinfer.errors import ConfigError
from pallas_kernels.grouped_matmul.api import IMPLEMENTATIONS as GROUPED
from pallas_kernels.paged_attention.api import IMPLEMENTATIONS as ATTENTION
from pallas_kernels.quant_matmul.api import CODED_IN_PARTS, PLAIN_IN_PARTS
from pallas_kernels.quant_matmul.api import IMPLEMENTATIONS as QUANTIZED
from pallas_kernels.rms_norm.api import IMPLEMENTATIONS as NORM
from pallas_kernels.rotate_write.api import IMPLEMENTATIONS as WRITE


def test_what_may_be_asked_for_is_what_the_ops_have() -> None:
    there = {
        "paged_attention": ATTENTION,
        "quant_matmul": QUANTIZED,
        "plain_matmul_parts": PLAIN_IN_PARTS,
        "coded_matmul_parts": CODED_IN_PARTS,
        "grouped_matmul": GROUPED,
        "rms_norm": NORM,
        "rotate_write": WRITE,
    }
    found = {op: {"auto", *names} for op, names in there.items()}
    assert {op: set(names) for op, names in OPS.items()} == found


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("mosaic", "mosaic"),
        ({"rms_norm": "xla", "paged_attention": "mosaic"}, "paged_attention=mosaic,rms_norm=xla"),
        ("rms_norm=xla, paged_attention=mosaic", "paged_attention=mosaic,rms_norm=xla"),
        ({"rms_norm": "xla", "rotate_write": "auto"}, "rms_norm=xla"),
        ({"rms_norm": "auto"}, "auto"),
        ({}, "auto"),
    ],
)
def test_what_is_asked_has_one_form(given: Any, kept: str) -> None:
    ask = engine_config(kernels=given)
    assert ask.kernels == kept == kernel_choice(kept)
    assert ask == EngineConfig(kernels=kept) and hash(ask) == hash(EngineConfig(kernels=kept))


def test_ops_that_are_not_named_stay_open() -> None:
    ask = engine_config(kernels={"rms_norm": "simulated", "quant_matmul": "reference"})
    assert {op: ask.asked_of(op) for op in OPS if ask.asked_of(op) != "auto"} == {
        "rms_norm": "simulated",
        "quant_matmul": "reference",
    }
    assert {asked_of("mosaic", op) for op in OPS} == {"mosaic"} and not named_ops("mosaic")


def test_one_simulated_op_is_enough_for_bfloat16() -> None:
    asked = ["simulated", {"rotate_write": "simulated", "rms_norm": "xla"}]
    assert all(engine_config(kernels=one).simulates for one in asked)
    assert not any(engine_config(kernels=one).simulates for one in ("auto", "rms_norm=xla"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("pallas", "must be one of 'auto', 'reference', 'mosaic', 'triton', 'simulated', or name"),
        ({"paged_atention": "mosaic"}, "unknown op 'paged_atention'; did you mean 'paged_attent"),
        ({"rms_norm": "mosiac"}, "unknown implementation of rms_norm 'mosiac'; did you mean 'mos"),
        ({"rotate_write": "triton"}, "of rotate_write 'triton'; known: auto, reference, mosaic, s"),
        ({"rms_norm": None}, "unknown implementation of rms_norm None; known: auto, reference"),
        ({3: "mosaic"}, "unknown op 3; known: paged_attention, "),
        ("rms_norm=xla,rms_norm=mosaic", "must name each op once: rms_norm is there twice"),
        ("rms_norm=xla,", "unknown op ''; known"),
        ("mosaic,rms_norm=xla", "unknown op 'mosaic'; known"),
    ],
)
def test_unknown_ops_and_implementations_are_refused(given: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        engine_config(kernels=given)
    assert str(caught.value).startswith(f"kernels={given!r} must ") and said in str(caught.value)
