"""`linear`: the product, the bias, dtypes, and the same bits for any number of rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.layers.linear import add_parts, linear, linear_parts, matmul
from jaxinfer.layers.weights import (
    BiasedWeight,
    BlockScaledWeight,
    LinearWeight,
    Matrix,
    OffsetWeight,
    PermutedWeight,
    QuantWeight,
    StreamedWeight,
    Weight,
    ZeroPointWeight,
)
from tests.pallas_kernels.quant_matmul.packed import CASES, Case

MATRIX = np.random.default_rng(0).normal(size=(40, 96)).astype(np.float32)
BIAS = np.random.default_rng(1).normal(size=40).astype(np.float32)
X = np.random.default_rng(2).normal(size=(64, 96)).astype(np.float32)

program = jax.jit(matmul)


@pytest.mark.parametrize("shape", [(96,), (1, 96), (3, 96), (2, 3, 96)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_equals_float64(shape: tuple[int, ...], has_bias: bool) -> None:
    x = X.reshape(-1)[: int(np.prod(shape))].reshape(shape)
    matrix = jnp.asarray(MATRIX)
    weight: LinearWeight = Weight(value=matrix)
    if has_bias:
        weight = BiasedWeight(value=matrix, bias=jnp.asarray(BIAS))
    found = np.asarray(linear(jnp.asarray(x), weight))
    exact = x.astype(np.float64) @ MATRIX.T.astype(np.float64) + (BIAS if has_bias else 0)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, exact, atol=2e-5)


def test_bfloat16_matrices_give_float32() -> None:
    """The input is rounded to the matrix's dtype, the sum is kept in float32."""
    matrix = jnp.asarray(MATRIX, jnp.bfloat16)
    found = program(X[:4], matrix)
    assert found.dtype == jnp.float32
    rounded = np.asarray(jnp.asarray(X[:4], jnp.bfloat16), np.float64)
    exact = rounded @ np.asarray(matrix, np.float64).T
    np.testing.assert_allclose(np.asarray(found), exact, atol=1e-4)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_row_s_bits_do_not_depend_on_the_number_of_rows(dtype: jnp.dtype) -> None:
    """Alone too: one row would take another path, so it is padded to two."""
    matrix = jnp.asarray(MATRIX, dtype)
    whole = np.asarray(program(X, matrix))
    for rows in (1, 2, 7, 33):
        np.testing.assert_array_equal(np.asarray(program(X[:rows], matrix)), whole[:rows])


def record_of(case: Case) -> Matrix:
    """The weight record that holds a case's arrays."""
    bits = 4 if case.codes.dtype == np.uint8 else 8
    codes, scales = jnp.asarray(case.codes), jnp.asarray(case.scales)
    addends = {name: jnp.asarray(value) for name, value in case.addends.items()}
    group, out_group = case.options["group"], case.options["out_group"]
    if out_group > 1:
        return BlockScaledWeight(
            codes=codes, scales=scales, bits=bits, group=group, out_group=out_group
        )
    record = {"zeros": ZeroPointWeight, "offsets": OffsetWeight}.get("".join(addends), QuantWeight)
    return record(codes=codes, scales=scales, bits=bits, group=group, **addends)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_packed_records_give_what_their_matrix_gives(case: Case) -> None:
    """Bit for bit: packed weights are decoded and then take the path of plain ones."""
    x = X.reshape(-1)[: 3 * case.matrix.shape[1]].reshape(3, -1)
    plain = jax.jit(linear)(
        x, BiasedWeight(value=jnp.asarray(case.matrix), bias=jnp.ones(len(case.matrix)))
    )
    packed = jax.jit(linear)(
        x, BiasedWeight(value=record_of(case), bias=jnp.ones(len(case.matrix)))
    )
    np.testing.assert_array_equal(np.asarray(packed), np.asarray(plain))


def test_permuted_columns_meet_their_inputs() -> None:
    """Stored column j multiplies input order[j]."""
    case = CASES[1]
    order = np.random.default_rng(5).permutation(case.matrix.shape[1]).astype(np.int32)
    unpermuted = np.empty_like(case.matrix)
    unpermuted[:, order] = case.matrix
    weight = PermutedWeight(order=jnp.asarray(order), matrix=record_of(case))  # type: ignore[arg-type]
    found = np.asarray(program(X[:4], weight))
    np.testing.assert_allclose(found, X[:4] @ unpermuted.T, atol=1e-4)
    assert not np.allclose(found, X[:4] @ case.matrix.T, atol=1e-1)


@pytest.mark.parametrize("has_bias", [False, True])
def test_parts_add_up_to_the_product(has_bias: bool) -> None:
    """A bias is added once, so such a product is one part."""
    matrix, x = jnp.asarray(MATRIX), jnp.asarray(X[:3])
    weight: LinearWeight = Weight(value=matrix)
    if has_bias:
        weight = BiasedWeight(value=matrix, bias=jnp.asarray(BIAS))
    parts = linear_parts(x, weight)
    assert parts.shape == (1, 3, 40)
    np.testing.assert_array_equal(np.asarray(add_parts(parts)), np.asarray(linear(x, weight)))


def test_parts_are_added_in_order() -> None:
    """In float32: (1e8 - 1e8) + 1 is 1, and 1e8 + (1 - 1e8) is 0."""
    parts = jnp.asarray([[1e8], [-1e8], [1.0]], jnp.float32)
    assert add_parts(parts).tolist() == [1.0]


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_streamed_matrix_multiplies_as_it_does_unstreamed(has_bias: bool) -> None:
    random = np.random.default_rng(7)
    matrix = jnp.asarray(random.normal(size=(128, 256)), jnp.bfloat16)
    x = jnp.asarray(random.normal(size=(3, 256)), jnp.bfloat16)
    bias = jnp.asarray(random.normal(size=128), jnp.float32)

    def product(value: Matrix) -> np.ndarray:
        weight = BiasedWeight(value=value, bias=bias) if has_bias else Weight(value=value)
        return np.asarray(jax.jit(lambda x: add_parts(linear_parts(x, weight)))(x))

    plain = product(matrix)
    reference = product(StreamedWeight(value=matrix, kernel="reference"))
    np.testing.assert_array_equal(reference, plain)
    simulated = product(StreamedWeight(value=matrix, kernel="simulated"))
    np.testing.assert_allclose(simulated, plain, atol=1e-3)
