"""Products of rows with a matrix of their own type, bfloat16 or codes: simulated against float64.

What nothing has written holds NaN in the simulation; a kernel that reads past an end is stopped.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.quant_matmul import mosaic
from pallas_kernels.quant_matmul.cases import PRODUCT_CASES, WHOLE_ROW, ProductCase
from pallas_kernels.quant_matmul.tiles import QuantTiles
from tests.pallas_kernels.quant_matmul.products import (
    Product,
    assert_close,
    make_product,
    run_product,
)

SIMULATED = [
    pytest.param(case, marks=pytest.mark.slow if case.tier == "slow" else (), id=case.name)
    for case in PRODUCT_CASES
    if case.tier != "bench"
]
SMALL = [case for case in PRODUCT_CASES if case.tier != "bench"]
KINDS = ("bf16", "int8", "fp8")


@pytest.mark.parametrize("case", SIMULATED)
def test_simulated_equals_float64(case: ProductCase) -> None:
    product = make_product(case)
    assert_close(product, run_product(product))


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_the_reference_equals_float64(case: ProductCase) -> None:
    product = make_product(case)
    assert_close(product, run_product(product, "reference"))


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_the_form_for_xla_equals_float64(kind: Any) -> None:
    case = next(case for case in SMALL if case.kind == kind and case.group == WHOLE_ROW)
    product = make_product(case)
    assert_close(product, run_product(product, "xla"))


def test_leading_axes_are_kept() -> None:
    product = make_product(SMALL[0])
    deeper = replace(product, of_rows=[product.of_rows[0][None]])
    found = run_product(deeper)
    assert found.shape == (1, 1, *product.exact.shape)
    assert_close(product, found[:, 0])


SIZES = st.tuples(st.integers(1, 20), st.integers(1, 2), st.integers(1, 10))


def check_any(kind: Any, groups: tuple[int, int], sizes: tuple[int, int, int], seed: int) -> None:
    rows, tiles, steps = sizes
    step = 64 if kind == "bf16" else 128
    case = ProductCase(
        name="any",
        kind=kind,
        rows=rows,
        outputs=64 * tiles,
        columns=step * steps,
        group=groups[0],
        out_group=groups[1],
        scales=("float32", "bfloat16", "float16")[seed % 3],
    )
    product = make_product(case, seed)
    assert_close(product, run_product(product))


@settings(max_examples=2, derandomize=True, deadline=None, database=None)
@given(SIZES, st.integers(0, 99))
def test_any_shape_of_floats(sizes: tuple[int, int, int], seed: int) -> None:
    check_any("bf16", (WHOLE_ROW, 1), sizes, seed)


GROUPS = st.tuples(st.sampled_from([128, 256, 384, WHOLE_ROW]), st.sampled_from([1, 48, 64, 128]))


@settings(max_examples=2, derandomize=True, deadline=None, database=None)
@given(st.sampled_from(["int8", "fp8"]), GROUPS, SIZES, st.integers(0, 99))
def test_any_shape_of_codes(
    kind: str, groups: tuple[int, int], sizes: tuple[int, int, int], seed: int
) -> None:
    check_any(kind, groups, sizes, seed)


@pytest.mark.slow
@settings(max_examples=50, derandomize=True, deadline=None, database=None)
@given(
    st.sampled_from(KINDS),
    GROUPS,
    st.tuples(st.integers(1, 128), st.integers(1, 4), st.integers(1, 20)),
    st.integers(0, 99),
)
def test_any_larger_shape(
    kind: str, groups: tuple[int, int], sizes: tuple[int, int, int], seed: int
) -> None:
    check_any(kind, groups, sizes, seed)


def filled_up(product: Product, rows: int) -> Product:
    """More rows of NaN, or of codes whose scale is NaN."""

    def longer(one: np.ndarray) -> np.ndarray:
        filler = 127 if one.dtype == np.int8 else np.nan
        return np.concatenate([one, np.full((rows, one.shape[1]), filler).astype(one.dtype)])

    return replace(product, of_rows=[longer(one) for one in product.of_rows])


@pytest.mark.parametrize("kind", ["bf16", "fp8", pytest.param("int8", marks=pytest.mark.slow)])
def test_what_fills_up_a_tile_reaches_no_row(kind: Any) -> None:
    """Nor do the bits of a row depend on what else is in the tile."""
    options: dict[str, Any] = {"rows": 3, "outputs": 64, "columns": 1024}
    product = make_product(ProductCase(name="poison", kind=kind, group=256, **options))
    alone = np.asarray(run_product(product))
    beside_nan = np.asarray(run_product(filled_up(product, 10)))
    assert len(alone) == 2 and np.isnan(beside_nan[:, 3:]).all()
    np.testing.assert_array_equal(beside_nan[:, :3], alone)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bf16", "int8"])
def test_two_warpgroups_give_the_same_bits(kind: Any) -> None:
    options: dict[str, Any] = {"rows": 3, "outputs": 128, "columns": 256}
    product = make_product(ProductCase(name="two", kind=kind, group=128, **options))
    run: Any = mosaic.plain_matmul_parts if kind == "bf16" else mosaic.coded_matmul_parts
    tiles = QuantTiles(warpgroups=2, block_rows=32, stages=2)
    arrays = jax.tree.map(jnp.asarray, [*product.of_rows, *product.of_matrix])
    found = run(*arrays, **product.options, tiles=tiles, interpret=True)
    np.testing.assert_array_equal(np.asarray(found), np.asarray(run_product(product)))
