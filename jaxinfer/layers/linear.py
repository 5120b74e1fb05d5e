"""DEV. `linear`: the one entry through which every weight matrix is applied."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxinfer.layers.rounded_inputs import round_inputs
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
    ZeroPointWeight,
)
from pallas_kernels.quant_matmul import quant_matmul
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


def matmul(x: jax.Array, matrix: Matrix) -> jax.Array:
    """x · matrixᵀ in float32.

    Args:
        x: [..., in] – cast to the dtype of a plain matrix; a packed one is decoded to x's dtype.
        matrix: [out, in], plain or packed.

    Returns:
        [..., out] f32.
    """
    match matrix:
        case ObservedMatrix():
            matrix.observe(x)
            return matmul(x, matrix.value)
        case RoundedInputWeight(matrix=inner):
            return matmul(round_inputs(x, matrix.inputs, matrix.input_group), inner)
        case PermutedWeight(order=order, matrix=inner):
            return matmul(jnp.take(x, order, axis=-1, mode="clip"), inner)
        case QuantWeight():
            return _quant_matmul(x, matrix)
        case ZeroPointWeight():
            return _quant_matmul(x, matrix, zeros=matrix.zeros)
        case OffsetWeight():
            return _quant_matmul(x, matrix, offsets=matrix.offsets)
        case BlockScaledWeight():
            return _quant_matmul(x, matrix, out_group=matrix.out_group)
    return row_matmul(x, matrix)


def _quant_matmul(x: jax.Array, matrix: GroupedWeight, **options: Any) -> jax.Array:
    return quant_matmul(
        x,
        matrix.codes,
        matrix.scales,
        group=matrix.group,
        implementation=matrix.kernel,  # type: ignore[arg-type]  # checked where it was decided
        **options,
    )
