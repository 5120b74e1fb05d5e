"""Which kernel multiplies with each packed matrix: settled from shapes, nothing is compiled."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxinfer.layers.matmul_kernels import why_without_kernel, with_kernels
from jaxinfer.layers.weights import PermutedWeight, QuantWeight, RoundedInputWeight, Weight
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


def test_floats_stream_where_a_kernel_serves_them() -> None:
    def plain(value: jax.Array, platform: Platform = HOPPER) -> Any:
        named = with_kernels({"one": Weight(value=value)}, "auto", "bfloat16", platform)
        return named["one"].value

    small, large = jnp.zeros((2, 3)), jnp.zeros((64, 128), jnp.bfloat16)
    assert plain(small) is small
    assert plain(large, Platform(kind="cpu")) is large
    assert plain(large).value is large and plain(large).kernel == "mosaic"
    stack = jnp.zeros((2, 64, 128), jnp.bfloat16)
    assert plain(stack) is stack


def codes(dtype: Any, *shape: int, group: int = 256) -> Any:
    outputs, columns = shape
    return QuantWeight(
        codes=jax.ShapeDtypeStruct(shape, dtype),  # type: ignore[arg-type]
        scales=jax.ShapeDtypeStruct((columns // group, outputs), jnp.float32),  # type: ignore
        bits=8,
        group=group,
    )


def missing(matrix: Any, platform: Platform = HOPPER) -> list[tuple[str, str, str]]:
    named = with_kernels({"one": Weight(value=matrix)}, "auto", "bfloat16", platform)
    return list(why_without_kernel(named, "bfloat16", platform))


def test_what_xla_multiplies_says_why() -> None:
    assert missing(codes(jnp.int8, 128, 256)) == []
    ((op, kind, reason),) = missing(codes(jnp.int8, 100, 256))
    assert (op, kind) == ("packed matrices", "int8") and "100 outputs" in reason
    permuted = PermutedWeight(jnp.arange(256, dtype=jnp.int32), codes(jnp.int8, 100, 256))
    assert missing(permuted) == [(op, kind, reason)]
    stack = packed(4, 128, 256).value
    assert missing(stack) == []
    ampere = Platform(kind="gpu", compute_capability=(8, 0), is_absent=True)
    assert [one[:2] for one in missing(stack, ampere)] == [("packed matrices", "int4")]
    plain = jax.ShapeDtypeStruct((100, 256), jnp.bfloat16)
    ((op, kind, reason),) = missing(plain)
    assert (op, kind) == ("plain matrices", "bfloat16") and "100 by 256" in reason


def test_inputs_and_codes_that_no_kernel_multiplies_say_why() -> None:
    def rounded(matrix: Any, group: int = 256) -> Any:
        return RoundedInputWeight(matrix=matrix, inputs="int8", input_group=group)

    assert missing(rounded(codes(jnp.int8, 128, 256))) == []
    ((op, kind, reason),) = missing(rounded(codes(jnp.int8, 128, 256), group=128))
    assert (op, kind) == ("products of codes", "int8") and "128 inputs, and of 256" in reason
    found = missing(rounded(packed(100, 256).value))
    assert [one[:2] for one in found] == [
        ("products of codes", "int4"),
        ("packed matrices", "int4"),
    ]
    assert "inputs are int8, the matrix is int4" in found[0][2]
