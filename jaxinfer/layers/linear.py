"""DEV. `linear`: the one entry through which every weight matrix is applied.

A product may come in parts: who adds it to something takes `linear_parts`, and adds all at once.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxinfer.layers.rounded_inputs import input_codes, round_inputs
from jaxinfer.layers.weights import (
    BiasedWeight,
    BlockScaledWeight,
    GroupedWeight,
    LinearWeight,
    Matrix,
    ObservedMatrix,
    OffsetWeight,
    PermutedWeight,
    QuantWeight,
    RoundedInputWeight,
    StreamedWeight,
    ZeroPointWeight,
)
from pallas_kernels.quant_matmul import (
    coded_matmul_parts,
    plain_matmul_parts,
    quant_matmul_parts,
)
from pallas_kernels.row_matmul import row_matmul


def linear(x: jax.Array, weight: LinearWeight) -> jax.Array:
    """x · weightᵀ (+ bias), accumulated in float32.

    Args:
        x: [..., in].
        weight: a record of `layers/weights.py`.

    Returns:
        [..., out] f32; the caller decides what it is kept in.

    Cost: 2·rows·in·out FLOPs; reads the matrix once.
    """
    out = matmul(x, weight.value)
    if isinstance(weight, BiasedWeight):
        out = out + weight.bias.reshape((1,) * (out.ndim - 1) + weight.bias.shape)
    return out


def linear_parts(x: jax.Array, weight: LinearWeight) -> jax.Array:
    """[parts, ..., out] f32: arrays whose sum, in order, is `linear`."""
    if isinstance(weight, BiasedWeight):
        return linear(x, weight)[None]
    return matmul_parts(x, weight.value)


def add_parts(parts: jax.Array) -> jax.Array:
    """The sum of [parts, ...], in order."""
    return functools.reduce(jnp.add, list(parts))


def matmul(x: jax.Array, matrix: Matrix) -> jax.Array:
    """x · matrixᵀ in float32: the sum of `matmul_parts`."""
    return add_parts(matmul_parts(x, matrix))


def matmul_parts(x: jax.Array, matrix: Matrix) -> jax.Array:
    """x · matrixᵀ in float32, as arrays to be added in order.

    Args:
        x: [..., in] – cast to the dtype of a plain matrix; a packed one is decoded to x's dtype.
        matrix: [out, in], plain or packed.

    Returns:
        [parts, ..., out] f32.
    """
    match matrix:
        case ObservedMatrix():
            matrix.observe(x)
            return matmul_parts(x, matrix.value)
        case RoundedInputWeight(matrix=inner):
            if matrix.kernel != "reference":
                return _coded_matmul_parts(x, matrix)
            return matmul_parts(round_inputs(x, matrix.inputs, matrix.input_group), inner)
        case PermutedWeight(order=order, matrix=inner):
            return matmul_parts(jnp.take(x, order, axis=-1, mode="clip"), inner)
        case StreamedWeight(value=value, kernel=kernel):
            # A name from `StreamedWeight`, decided when it was made.
            return plain_matmul_parts(x, value, implementation=kernel)  # type: ignore[arg-type]
        case QuantWeight():
            return _quant_matmul(x, matrix)
        case ZeroPointWeight():
            return _quant_matmul(x, matrix, zeros=matrix.zeros)
        case OffsetWeight():
            return _quant_matmul(x, matrix, offsets=matrix.offsets)
        case BlockScaledWeight():
            return _quant_matmul(x, matrix, out_group=matrix.out_group)
    return row_matmul(x, matrix)[None]


def _coded_matmul_parts(x: jax.Array, matrix: RoundedInputWeight) -> jax.Array:
    """Both sides stay codes."""
    inner = matrix.matrix
    return coded_matmul_parts(
        *input_codes(x, matrix.inputs, matrix.input_group),
        inner.codes,
        inner.scales,
        group=inner.group,
        out_group=inner.out_group if isinstance(inner, BlockScaledWeight) else 1,
        implementation=matrix.kernel,  # type: ignore[arg-type]  # checked where it was decided
    )


def _quant_matmul(x: jax.Array, matrix: GroupedWeight, **options: Any) -> jax.Array:
    return quant_matmul_parts(
        x,
        matrix.codes,
        matrix.scales,
        group=matrix.group,
        implementation=matrix.kernel,  # type: ignore[arg-type]  # checked where it was decided
        **options,
    )
