"""Packed forms: what they weigh, and that NumPy and the op decode them to the same bits."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxinfer.checkpoint.leaf_source import (
    Addend,
    CodeKind,
    PackedForm,
    PackedMatrix,
    PackedRows,
    decode_rows,
)
from pallas_kernels.quant_matmul import dequantize
from tests.pallas_kernels.quant_matmul.packed import CASES, Case


def form_of(case: Case, **changes: Any) -> PackedForm:
    codes: CodeKind = {"uint8": "int4", "int8": "int8"}.get(case.codes.dtype.name, "fp8")  # type: ignore[assignment]
    addend: Addend = "".join(case.addends) or "none"  # type: ignore[assignment]
    fields: dict[str, Any] = {
        "shape": case.matrix.shape,
        "codes": codes,
        "scale_dtype": case.scales.dtype,
        "addend": addend,
        **case.options,
    }
    return PackedForm(**{**fields, **changes})


class _Stored(PackedMatrix):
    """A case's arrays as a matrix of a checkpoint, with its columns in another order."""

    def __init__(self, case: Case, order: np.ndarray) -> None:
        self.form, self.order = form_of(case, is_permuted=True), order
        self.rows = rows_of(case)

    def read_packed(self, start: int, stop: int) -> PackedRows:
        return self.rows

    def read_order(self) -> np.ndarray:
        return self.order


def rows_of(case: Case) -> PackedRows:
    return PackedRows(
        codes=case.codes, scales=case.scales, addends=next(iter(case.addends.values()), None)
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_decoded_here_and_by_the_op_to_the_same_bits(case: Case) -> None:
    found = decode_rows(form_of(case), rows_of(case))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, case.matrix)
    np.testing.assert_array_equal(
        found, np.asarray(dequantize(columns=found.shape[1], **case.arguments()))
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_arrays_are_those_of_the_op(case: Case) -> None:
    arrays = {"codes": case.codes, "scales": case.scales, **case.addends}
    expected = {name: (value.shape, value.dtype) for name, value in arrays.items()}
    assert form_of(case).arrays() == expected
    assert form_of(case).num_bytes == sum(value.nbytes for value in arrays.values())


def test_a_permuted_matrix_is_put_back() -> None:
    case = CASES[1]
    order = np.random.default_rng(0).permutation(case.matrix.shape[1])
    found = _Stored(case, order).read_floats(0, len(case.matrix))
    np.testing.assert_array_equal(found[:, order], case.matrix)


@pytest.mark.parametrize(
    ("form", "bits_a_weight"),
    [
        ({"codes": "int4", "group": 128, "scale_dtype": np.float16}, 4 + 16 / 128),
        ({"codes": "int4", "group": 32, "scale_dtype": np.float16}, 4.5),
        (
            {"codes": "int4", "group": 32, "scale_dtype": np.float16, "addend": "zeros"},
            4.5 + 8 / 32,
        ),
        ({"codes": "int4", "group": 32, "scale_dtype": np.float16, "addend": "offsets"}, 5),
        ({"codes": "int4", "group": 32, "scale_dtype": np.float32, "addend": "offsets"}, 6),
        ({"codes": "int8", "group": 4096, "scale_dtype": np.float32}, 8 + 32 / 4096),
        ({"codes": "int8", "group": 16, "scale_dtype": np.float32}, 10),
        (
            {"codes": "fp8", "group": 128, "out_group": 128, "scale_dtype": np.float32},
            8 + 32 / 128**2,
        ),
        (
            {"codes": "int4", "group": 128, "scale_dtype": ml_dtypes.bfloat16, "is_permuted": True},
            4 + 16 / 128 + 32 / 1024,
        ),
    ],
)
def test_bytes_are_what_theory_says(form: dict[str, Any], bits_a_weight: float) -> None:
    """[1024, 4096] of 4 or 8 bits a code, 16 or 32 a scale; an order costs 32 a column."""
    form = {**form, "scale_dtype": np.dtype(form["scale_dtype"])}
    assert PackedForm(shape=(1024, 4096), **form).num_bytes == 1024 * 4096 * bits_a_weight / 8
