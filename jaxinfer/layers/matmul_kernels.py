"""DEV. Which implementation of `quant_matmul` multiplies with each matrix.

Settled once for a device, from shapes; knows no file and no engine.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from jaxinfer.layers.weights import (
    BiasedWeight,
    BlockScaledWeight,
    GroupedWeight,
    QuantWeight,
    RoundedInputWeight,
    StreamedWeight,
    Weight,
)
from pallas_kernels.dispatch import Platform
from pallas_kernels.quant_matmul import resolve_coded, resolve_implementation, resolve_plain


def with_kernels(
    params: Any, wanted: str, activation_dtype: str, platform: Platform | None = None
) -> Any:
    """The parameters (arrays or shapes), every packed matrix with its implementation's name, and
    plain ones with that of a kernel that serves them.

    Args:
        wanted: "auto" or a name of the op's implementations.
        activation_dtype: of the rows that are multiplied.
        platform: where the program will run; None for this process's first device.

    Raises:
        ValueError: the named implementation cannot serve one of the packed matrices.
    """

    def packed(leaf: Any) -> Any:
        if isinstance(leaf, RoundedInputWeight):
            coded = _coded(leaf, wanted, platform)
            if coded.kernel != "reference":
                return coded
            return replace(leaf, matrix=packed(leaf.matrix))
        is_packed = isinstance(leaf, GroupedWeight)
        return _with_kernel(leaf, wanted, activation_dtype, platform) if is_packed else leaf

    def plain(leaf: Any) -> Any:
        is_one = isinstance(leaf, Weight | BiasedWeight)
        if not is_one or getattr(leaf.value, "ndim", 0) != 2:  # a record, or a stack of experts
            return leaf
        return replace(leaf, value=_streamed(leaf.value, wanted, activation_dtype, platform))

    whole = GroupedWeight | RoundedInputWeight
    params = jax.tree.map(packed, params, is_leaf=lambda one: isinstance(one, whole))
    return jax.tree.map(plain, params, is_leaf=lambda one: isinstance(one, Weight | BiasedWeight))


def _coded(
    matrix: RoundedInputWeight, wanted: str, platform: Platform | None
) -> RoundedInputWeight:
    """With the kernel of codes by codes, where one serves: both sides have the same scales' groups,
    and nothing stands beside codes and scales."""
    inner = matrix.matrix
    if not isinstance(inner, QuantWeight | BlockScaledWeight) or inner.codes.ndim != 2:
        return matrix
    outputs, columns = inner.codes.shape
    kinds = {"int8": jnp.int8, "fp8": jnp.float8_e4m3fn}
    if inner.codes.dtype != kinds[matrix.inputs]:
        return matrix
    if min(inner.group, columns) != min(matrix.input_group, columns):
        return matrix
    kernel = resolve_coded(
        wanted,
        {"x": (1, columns), "codes": (outputs, columns)},
        dict.fromkeys(("x", "codes"), inner.codes.dtype),
        group=inner.group,
        out_group=inner.out_group if isinstance(inner, BlockScaledWeight) else 1,
        platform=platform,
    )
    return replace(matrix, kernel=kernel)


def _with_kernel(
    matrix: GroupedWeight, wanted: str, dtype: str, platform: Platform | None
) -> GroupedWeight:
    outputs, width = matrix.codes.shape[-2:]  # of one, where it is a stack of experts
    columns = 2 * width if matrix.codes.dtype == jnp.uint8 else width
    name = resolve_implementation(
        wanted,
        {"x": (1, columns), "codes": (outputs, width)},
        {"x": dtype, "codes": matrix.codes.dtype},
        group=matrix.group,
        platform=platform,
    )
    is_stack = matrix.codes.ndim > 2
    return replace(matrix, kernel="reference" if is_stack and name == "triton" else name)


def _streamed(matrix: Any, wanted: str, dtype: str, platform: Platform | None) -> Any:
    """A plain matrix with its kernel's name; as it is where none serves it."""
    shapes = {"x": (1, matrix.shape[1]), "matrix": matrix.shape}
    kernel = resolve_plain(wanted, shapes, {"x": dtype, "matrix": matrix.dtype}, platform)
    return matrix if kernel == "reference" else StreamedWeight(value=matrix, kernel=kernel)
