"""Which kernel multiplies with each packed matrix: settled from shapes, nothing is compiled."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxinfer.layers.matmul_kernels import with_kernels
from jaxinfer.layers.weights import QuantWeight, Weight
from pallas_kernels.dispatch import HOPPER, Platform


def packed(*shape: int, group: int = 128) -> Weight:
    """int4 codes [..., out, in], as shapes."""
    *stack, outputs, columns = shape
    codes = jax.ShapeDtypeStruct((*stack, outputs, columns // 2), jnp.uint8)
    scales = jax.ShapeDtypeStruct((*stack, columns // group, outputs), jnp.bfloat16)
    record: Any = QuantWeight(codes=codes, scales=scales, bits=4, group=group)  # type: ignore
    return Weight(value=record)


def kernel_of(weight: Weight, wanted: str = "auto", platform: Platform = HOPPER) -> str:
    named = with_kernels({"one": weight}, wanted, "bfloat16", platform)
    return named["one"].value.kernel


def test_a_matrix_takes_the_best_that_serves_it() -> None:
    assert kernel_of(packed(128, 256)) == "mosaic"
    assert kernel_of(packed(100, 256)) == "reference"  # outputs are no multiple of 64
    assert kernel_of(packed(128, 256), platform=Platform(kind="cpu")) == "reference"
    assert kernel_of(packed(128, 256), "reference") == "reference"
    assert kernel_of(packed(128, 256), "simulated", Platform(kind="cpu")) == "simulated"


def test_a_stack_of_experts_takes_what_one_matrix_takes() -> None:
    assert kernel_of(packed(4, 128, 256)) == "mosaic"
    assert kernel_of(packed(4, 100, 256)) == "reference"
    assert kernel_of(packed(4, 128, 256), platform=Platform(kind="cpu")) == "reference"


def test_a_named_kernel_that_a_matrix_cannot_take_is_refused() -> None:
    with pytest.raises(ValueError, match="quant_matmul cannot use 'mosaic'.*use 'auto'"):
        kernel_of(packed(100, 256), "mosaic")


def test_floats_are_left_alone() -> None:
    plain = Weight(value=jnp.zeros((2, 3)))
    assert with_kernels({"one": plain}, "auto", "bfloat16", HOPPER)["one"].value is plain.value
