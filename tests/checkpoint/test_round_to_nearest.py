"""Rounding at load against the definition: scales, ties, zeros, short groups, and the error."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxinfer.checkpoint.bit_fields import unpack_nibbles
from jaxinfer.checkpoint.leaf_source import CodeKind, PackedForm, PlainTensor, decode_rows
from jaxinfer.checkpoint.round_to_nearest import RoundedMatrix, round_rows
from jaxinfer.checkpoint.safetensors_file import open_safetensors
from tests.support.tiny_models import write_tiny

ROWS = np.random.default_rng(0).normal(0, 0.3, (8, 96)).astype(np.float32)


def form_of(codes: CodeKind, group: int, columns: int = 96, rows: int = 8) -> PackedForm:
    dtype: Any = ml_dtypes.bfloat16 if codes == "int4" else np.float32
    return PackedForm(shape=(rows, columns), codes=codes, group=group, scale_dtype=np.dtype(dtype))


def test_the_example() -> None:
    form = form_of("int4", 4, columns=4, rows=1)
    rows = round_rows(np.array([[7, -14, 0, 3]], np.float32), form)
    assert rows.scales.tolist() == [[2.0]]
    assert unpack_nibbles(rows.codes).tolist() == [[4, -7, 0, 2]]
    assert decode_rows(form, rows).tolist() == [[8, -14, 0, 4]]


@pytest.mark.parametrize("group", [32, 64, 96])
@pytest.mark.parametrize("codes", ["int4", "int8", "fp8"])
def test_nearest(codes: CodeKind, group: int) -> None:
    """No element is further off than half a step; a last group of 32 has its own scale."""
    form = form_of(codes, group)
    rows = round_rows(ROWS, form)
    assert rows.scales.shape == (-(-96 // group), 8)
    wide = np.repeat(rows.scales.astype(np.float32), group, axis=0)[:96].T
    error = np.abs(decode_rows(form, rows) - ROWS)
    half_steps = {"int4": 0.52, "int8": 0.501}.get(codes, 0.0) * wide
    if codes == "fp8":  # three bits after the first: half a step is 1/16 of the value
        half_steps = np.abs(ROWS) / 16 + wide * 2.0**-9
    assert (error <= half_steps).all()
    largest = {"int4": 7, "int8": 127, "fp8": 448}[codes]
    for place, start in enumerate(range(0, 96, group)):
        exact = np.abs(ROWS[:, start : start + group]).max(axis=1) / largest
        np.testing.assert_allclose(rows.scales[place].astype(np.float32), exact, rtol=2**-8)


@pytest.mark.parametrize("codes", ["int4", "int8", "fp8"])
def test_zeros_stay_zeros(codes: CodeKind) -> None:
    form = form_of(codes, 32)
    rows = ROWS.copy()
    rows[2, 32:64] = 0
    found = decode_rows(form, round_rows(rows, form))
    assert not found[2, 32:64].any() and np.isfinite(found).all()


@pytest.mark.parametrize("codes", ["int4", "int8", "fp8"])
def test_nan_shows_in_the_scale(codes: CodeKind) -> None:
    """So that loading refuses it."""
    rows = ROWS.copy()
    rows[3, 40] = np.nan
    scales = round_rows(rows, form_of(codes, 32)).scales.astype(np.float32)
    assert np.isnan(scales[1, 3]) and np.isfinite(np.delete(scales, 3, axis=1)).all()


def test_a_matrix_is_rounded_as_it_is_read(tmp_path: Path) -> None:
    tensors = open_safetensors(write_tiny(tmp_path))
    name = "model.layers.0.mlp.up_proj.weight"
    plain = PlainTensor(info=tensors.infos[name], source=tensors)
    rounded = RoundedMatrix(plain, "int8", 64)
    whole = rounded.read_packed(0, 96)
    np.testing.assert_array_equal(rounded.read_packed(32, 64).codes, whole.codes[32:64])
    error = np.abs(rounded.read_floats(0, 96) - plain.read_floats(0, 96))
    assert 0 < error.max() < 0.01
