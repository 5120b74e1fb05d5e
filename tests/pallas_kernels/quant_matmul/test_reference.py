"""The reference of `quant_matmul`: decoding to the bit, the product, and bits at any width."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.quant_matmul import dequantize, quant_matmul
from pallas_kernels.row_matmul import row_matmul
from tests.pallas_kernels.quant_matmul.packed import CASES, Case

by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def rows_of(case: Case, count: int, dtype: Any = jnp.float32) -> jax.Array:
    values = np.random.default_rng(7).normal(size=(64, case.matrix.shape[1])).astype(np.float32)
    return jnp.asarray(values[:count]).astype(dtype)


def arrays_of(case: Case) -> dict[str, np.ndarray]:
    return {name: value for name, value in case.arguments().items() if name not in case.options}


def compiled(case: Case, **options: Any) -> Any:
    program = jax.jit(functools.partial(quant_matmul, **case.options, **options))
    return functools.partial(program, **arrays_of(case))


@by_name
def test_decodes_to_the_bit(case: Case) -> None:
    """In one program and op by op: no product is merged with the addition after it."""
    decode = functools.partial(dequantize, columns=case.matrix.shape[1], **case.options)
    for function in (decode, jax.jit(decode)):
        found = np.asarray(function(**arrays_of(case)))
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, case.matrix)


@by_name
def test_equals_float64(case: Case) -> None:
    x = rows_of(case, 3)
    found = np.asarray(compiled(case)(x))
    exact = np.asarray(x, np.float64) @ case.matrix.T.astype(np.float64)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, exact, atol=1e-5 * np.abs(case.matrix).max() * 96)


@by_name
def test_equals_the_product_with_the_decoded_matrix_bit_for_bit(case: Case) -> None:
    for dtype in (jnp.float32, jnp.bfloat16):
        x = rows_of(case, 5, dtype)
        plain = jax.jit(row_matmul)(x, jnp.asarray(case.matrix).astype(dtype))
        np.testing.assert_array_equal(np.asarray(compiled(case)(x)), np.asarray(plain))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@by_name
def test_a_row_s_bits_do_not_depend_on_the_number_of_rows(case: Case, dtype: Any) -> None:
    function = compiled(case)
    whole = np.asarray(function(rows_of(case, 64, dtype)))
    for count in (1, 2, 7, 33):
        found = np.asarray(function(rows_of(case, count, dtype)))
        np.testing.assert_array_equal(found, whole[:count])


def test_leading_axes_are_rows() -> None:
    case = CASES[0]
    x = rows_of(case, 6)
    found = compiled(case)(x.reshape(2, 3, -1))
    np.testing.assert_array_equal(np.asarray(found).reshape(6, -1), np.asarray(compiled(case)(x)))


def test_the_implementation_may_be_named() -> None:
    case = CASES[0]
    named = compiled(case, implementation="reference")(rows_of(case, 2))
    np.testing.assert_array_equal(np.asarray(named), np.asarray(compiled(case)(rows_of(case, 2))))
    with pytest.raises(ValueError, match="quant_matmul has no implementation 'x'"):
        compiled(case, implementation="x")(rows_of(case, 2))


def test_matrices_that_are_constants_of_a_program() -> None:
    """A compiler that folds them sees the same codes."""
    case = CASES[0]
    folded = jax.jit(functools.partial(quant_matmul, **arrays_of(case), **case.options))
    x = rows_of(case, 3)
    np.testing.assert_allclose(np.asarray(folded(x)), np.asarray(compiled(case)(x)), atol=1e-5)
