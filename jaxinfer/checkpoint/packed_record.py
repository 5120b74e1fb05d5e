"""JOINT. From what a reader says of a packed matrix to the record that `linear` runs.

The one place that knows both `PackedForm` and the records of `layers/weights.py`.
"""

from collections.abc import Mapping
from typing import Any

import jax

from jaxinfer.checkpoint.leaf_source import PackedForm
from jaxinfer.layers.weights import (
    BlockScaledWeight,
    GroupedWeight,
    OffsetWeight,
    PackedMatrix,
    PermutedWeight,
    QuantWeight,
    RoundedInputWeight,
    ZeroPointWeight,
)


def packed_record(
    form: PackedForm, arrays: Mapping[str, Any], *, round_inputs: bool = False
) -> PackedMatrix:
    """The record of a form; `arrays` has an array or a shape for each name of `form.arrays()`.

    round_inputs: inputs are rounded where the form says how.
    """
    matrix = _grouped(form, arrays)
    if round_inputs and form.inputs is not None:
        return RoundedInputWeight(
            matrix=matrix, inputs=form.inputs.kind, input_group=form.inputs.group
        )
    return PermutedWeight(order=arrays["order"], matrix=matrix) if form.is_permuted else matrix


def _grouped(form: PackedForm, arrays: Mapping[str, Any]) -> GroupedWeight:
    codes, scales, bits, group = arrays["codes"], arrays["scales"], form.bits, form.group
    if form.out_group > 1:
        return BlockScaledWeight(
            codes=codes, scales=scales, bits=bits, group=group, out_group=form.out_group
        )
    if form.addend == "zeros":
        return ZeroPointWeight(
            codes=codes, scales=scales, zeros=arrays["zeros"], bits=bits, group=group
        )
    if form.addend == "offsets":
        return OffsetWeight(
            codes=codes, scales=scales, offsets=arrays["offsets"], bits=bits, group=group
        )
    return QuantWeight(codes=codes, scales=scales, bits=bits, group=group)


def matrix_without_inputs(form: PackedForm) -> GroupedWeight:
    """What is multiplied with, as shapes: without an order of columns or a rounding of inputs."""
    return _grouped(form, _shapes(form))


def abstract_record(form: PackedForm, *, round_inputs: bool = False) -> PackedMatrix:
    """The record with shapes in place of arrays."""
    return packed_record(form, _shapes(form), round_inputs=round_inputs)


def _shapes(form: PackedForm) -> dict[str, jax.ShapeDtypeStruct]:
    return {
        name: jax.ShapeDtypeStruct(shape, dtype) for name, (shape, dtype) in form.arrays().items()
    }
