"""DEV. Which implementation of `quant_matmul` multiplies with each matrix, and why no kernel does.

Settled once for a device, from shapes; knows no file and no engine.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from jaxinfer.config.kernel_choice import asked_of
from jaxinfer.layers.weights import (
    BiasedWeight,
    BlockScaledWeight,
    GroupedWeight,
    PermutedWeight,
    QuantWeight,
    RoundedInputWeight,
    StreamedWeight,
    Weight,
)
from pallas_kernels.dispatch import HOPPER, Platform
from pallas_kernels.quant_matmul import (
    resolve_coded,
    resolve_implementation,
    resolve_plain,
    why_not,
    why_not_coded,
    why_not_plain,
)

_CODES = {"uint8": "int4", "int8": "int8", "float8_e4m3fn": "fp8"}  # by dtype; the first are two


def with_kernels(
    params: Any, wanted: str, activation_dtype: str, platform: Platform | None = None
) -> Any:
    """The parameters (arrays or shapes), every packed matrix with its implementation's name, and
    plain ones with that of a kernel that serves them.

    Args:
        wanted: what is asked of the ops, as `kernel_choice` has it.
        activation_dtype: of the rows that are multiplied.
        platform: where the program will run; None for this process's first device.

    Raises:
        ValueError: the named implementation cannot serve one of the packed matrices.
    """

    def packed(leaf: Any) -> Any:
        if isinstance(leaf, RoundedInputWeight):
            coded = _coded(leaf, asked_of(wanted, "coded_matmul_parts"), platform)
            if coded.kernel != "reference":
                return coded
            return replace(leaf, matrix=packed(leaf.matrix))
        if not isinstance(leaf, GroupedWeight):
            return leaf
        return _with_kernel(leaf, asked_of(wanted, "quant_matmul"), activation_dtype, platform)

    def plain(leaf: Any) -> Any:
        is_one = isinstance(leaf, Weight | BiasedWeight)
        if not is_one or getattr(leaf.value, "ndim", 0) != 2:  # a record, or a stack of experts
            return leaf
        name = asked_of(wanted, "plain_matmul_parts")
        return replace(leaf, value=_streamed(leaf.value, name, activation_dtype, platform))

    whole = GroupedWeight | RoundedInputWeight
    params = jax.tree.map(packed, params, is_leaf=lambda one: isinstance(one, whole))
    return jax.tree.map(plain, params, is_leaf=lambda one: isinstance(one, Weight | BiasedWeight))


def why_without_kernel(
    params: Any, activation_dtype: str, platform: Platform
) -> Iterator[tuple[str, str, str]]:
    """Of each matrix that plain XLA multiplies with: what for, what it is, and why no kernel does.

    Args:
        params: as `with_kernels` gives them, stacked or not. activation_dtype, platform: as there.

    Yields:
        ("packed matrices", "products of codes" or "plain matrices", kind of matrix, reason); none
        where a kernel would serve and another one was asked for.
    """
    linear = Weight | BiasedWeight
    for leaf in jax.tree.leaves(params, is_leaf=lambda one: isinstance(one, linear)):
        matrix = leaf.value if isinstance(leaf, linear) else None
        if isinstance(matrix, RoundedInputWeight):
            if matrix.kernel != "reference":
                continue
            if reason := _differs(matrix) or why_not_coded(
                **_coded_call(matrix), platform=platform
            ):
                yield "products of codes", _kind(matrix.matrix), reason
        matrix = (
            matrix.matrix if isinstance(matrix, RoundedInputWeight | PermutedWeight) else matrix
        )
        if isinstance(matrix, GroupedWeight):
            reason = why_not_packed(matrix, activation_dtype, platform)
            if matrix.kernel == "reference" and reason:
                yield "packed matrices", _kind(matrix), reason
        elif isinstance(matrix, jax.Array | jax.ShapeDtypeStruct) and matrix.ndim == 2:
            if reason := why_not_plain(*_plain_call(matrix, activation_dtype), platform):
                yield "plain matrices", str(matrix.dtype), reason


def why_not_packed(matrix: GroupedWeight, dtype: str, platform: Platform) -> str | None:
    """Why no kernel multiplies with a packed matrix (arrays or shapes) there, or None.

    Args:
        dtype: of the rows.
    """
    shapes, dtypes = _packed_call(matrix, dtype)
    reason = why_not(shapes, dtypes, group=matrix.group, platform=platform)
    is_stack = matrix.codes.ndim > 2 and platform.compute_capability < HOPPER.compute_capability
    return reason or ("the kernel in Triton takes no stacks of experts" if is_stack else None)


def _kind(matrix: GroupedWeight) -> str:
    return _CODES[str(jnp.dtype(matrix.codes.dtype))]


def _differs(matrix: RoundedInputWeight) -> str | None:
    """How inputs and matrix differ so that no kernel multiplies their codes, or None: both sides
    have the same scales' groups, and nothing stands beside codes and scales."""
    inner = matrix.matrix
    if not isinstance(inner, QuantWeight | BlockScaledWeight):
        return "zero points or offsets stand beside the scales"
    if inner.codes.ndim != 2:
        return "the matrices are a stack of experts"
    if _kind(inner) != matrix.inputs:
        return f"inputs are {matrix.inputs}, the matrix is {_kind(inner)}"
    columns = inner.codes.shape[1]
    groups = min(matrix.input_group, columns), min(inner.group, columns)
    if groups[0] != groups[1]:
        return f"a scale is of {groups[0]} inputs, and of {groups[1]} columns of the matrix"
    return None


def _coded(
    matrix: RoundedInputWeight, wanted: str, platform: Platform | None
) -> RoundedInputWeight:
    """With the kernel of codes by codes, where one serves."""
    if _differs(matrix):
        return matrix
    return replace(matrix, kernel=resolve_coded(wanted, **_coded_call(matrix), platform=platform))


def _coded_call(matrix: RoundedInputWeight) -> dict[str, Any]:
    inner = matrix.matrix
    outputs, columns = inner.codes.shape
    return {
        "shapes": {"x": (1, columns), "codes": (outputs, columns)},
        "dtypes": dict.fromkeys(("x", "codes"), inner.codes.dtype),
        "group": inner.group,
        "out_group": inner.out_group if isinstance(inner, BlockScaledWeight) else 1,
    }


def _with_kernel(
    matrix: GroupedWeight, wanted: str, dtype: str, platform: Platform | None
) -> GroupedWeight:
    shapes, dtypes = _packed_call(matrix, dtype)
    name = resolve_implementation(wanted, shapes, dtypes, group=matrix.group, platform=platform)
    is_stack = matrix.codes.ndim > 2
    return replace(matrix, kernel="reference" if is_stack and name == "triton" else name)


def _streamed(matrix: Any, wanted: str, dtype: str, platform: Platform | None) -> Any:
    """A plain matrix with its kernel's name; as it is where none serves it."""
    kernel = resolve_plain(wanted, *_plain_call(matrix, dtype), platform)
    return matrix if kernel == "reference" else StreamedWeight(value=matrix, kernel=kernel)


def _packed_call(matrix: GroupedWeight, dtype: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Shapes and dtypes of a product with one matrix, also where it is a stack of experts."""
    outputs, width = matrix.codes.shape[-2:]
    columns = 2 * width if matrix.codes.dtype == jnp.uint8 else width
    shapes = {"x": (1, columns), "codes": (outputs, width)}
    return shapes, {"x": dtype, "codes": matrix.codes.dtype}


def _plain_call(matrix: Any, dtype: str) -> tuple[dict[str, Any], dict[str, Any]]:
    shapes = {"x": (1, matrix.shape[1]), "matrix": matrix.shape}
    return shapes, {"x": dtype, "matrix": matrix.dtype}
