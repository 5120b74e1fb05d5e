"""`quant_matmul` on Mosaic GPU: simulated against float64, and in bits against itself.

What nothing has written holds NaN in the simulation; a kernel that reads past an end is stopped.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.dispatch import Platform
from pallas_kernels.quant_matmul import (
    mosaic,
    plain_matmul_parts,
    quant_matmul,
    resolve_implementation,
    resolve_plain,
)
from pallas_kernels.quant_matmul.cases import CASES, Case
from pallas_kernels.quant_matmul.tiles import QuantTiles, num_splits, quant_tiles
from tests.pallas_kernels.quant_matmul.packed import Case as Packed
from tests.pallas_kernels.quant_matmul.packed import make_case
from tests.support.tolerances import KERNELS

HOPPER = Platform(kind="gpu", compute_capability=(9, 0))
SIMULATED = [
    pytest.param(case, marks=pytest.mark.slow if case.tier == "slow" else (), id=case.name)
    for case in CASES
    if case.tier != "bench"
]


def packed_of(case: Case, seed: int = 0) -> Packed:
    return make_case(
        case.codes,
        addend=case.addend,
        shape=(case.outputs, case.columns),
        group=case.group,
        out_group=case.out_group,
        scale_dtype=ml_dtypes.bfloat16 if case.scales == "bfloat16" else np.dtype(case.scales),
        seed=seed,
    )


def rows_of(case: Case, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed + 1).normal(size=(case.rows, case.columns))
    return values.astype(ml_dtypes.bfloat16)


def simulate(packed: Packed, x: np.ndarray, tiles: QuantTiles | None = None) -> np.ndarray:
    arrays = {k: jnp.asarray(v) for k, v in packed.arguments().items() if k not in packed.options}
    run = functools.partial(mosaic.quant_matmul, tiles=tiles, interpret=True, **packed.options)
    found = jax.jit(run)(jnp.asarray(x), **arrays)
    assert found.dtype == jnp.float32
    return np.asarray(found, np.float64)


def assert_close(packed: Packed, x: np.ndarray, found: np.ndarray) -> None:
    exact = x.astype(np.float64) @ packed.matrix.astype(np.float64).T
    assert np.isfinite(found).all()
    # Only the codes' sums are rounded, in float32: far inside of what bfloat16 may differ.
    assert np.linalg.norm(found - exact) <= KERNELS["float32"] * np.linalg.norm(exact)


@pytest.mark.parametrize("case", SIMULATED)
def test_simulated_equals_float64(case: Case) -> None:
    packed, x = packed_of(case), rows_of(case)
    tiles = None
    if case.name == "two warpgroups":
        tiles = QuantTiles(warpgroups=2, block_rows=32, stages=2)
    assert_close(packed, x, simulate(packed, x, tiles))


@pytest.mark.slow
@settings(max_examples=30, derandomize=True, deadline=None, database=None)
@given(
    st.sampled_from(["int4", "int8"]),
    st.sampled_from(["none", "zeros", "offsets"]),
    st.sampled_from([16, 32, 64, 128, 256, 1 << 20]),
    st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 40)),
    st.sampled_from([1, 48, 128]),
    st.integers(0, 99),
)
def test_any_shape(
    codes: Any, addend: Any, group: int, sizes: tuple[int, int, int], out_group: int, seed: int
) -> None:
    blocks_out, blocks_in, rows = sizes
    unit = min(max(group, 64), 256)
    case = Case(
        name="any",
        codes=codes,
        rows=rows,
        outputs=64 * blocks_out,
        columns=unit * blocks_in,
        group=group,
        addend=addend,
        out_group=out_group if addend == "none" else 1,
    )
    packed, x = packed_of(case, seed), rows_of(case, seed)
    assert_close(packed, x, simulate(packed, x))


@pytest.mark.parametrize("addend", ["none", "offsets"])
def test_a_row_s_bits_depend_neither_on_the_others_nor_on_the_tile_of_rows(addend: Any) -> None:
    sizes = {"rows": 20, "outputs": 64, "columns": 1024, "group": 128}
    packed = packed_of(Case(name="bits", codes="int4", addend=addend, **sizes))
    x = rows_of(Case(name="bits", codes="int4", addend=addend, **sizes))
    whole, beside_nan = simulate(packed, x), np.full_like(x, np.nan)
    beside_nan[[7, 3]] = x[[7, 3]]
    np.testing.assert_array_equal(simulate(packed, beside_nan)[[7, 3]], whole[[7, 3]])
    np.testing.assert_array_equal(simulate(packed, x[[7, 3]]), whole[[7, 3]])
    wide = QuantTiles(warpgroups=1, block_rows=64, stages=3)
    np.testing.assert_array_equal(simulate(packed, x, wide), whole)


def test_splits_depend_on_the_matrix_alone_where_rows_fit_in_a_tile() -> None:
    for rows in (1, 64, 128):
        tiles = quant_tiles(rows)
        assert num_splits(4096, 4096, rows, tiles) == 4
        assert num_splits(14336, 4096, rows, tiles) == 4
        assert num_splits(4096, 14336, rows, tiles) == 2
        assert num_splits(4096, 1024, rows, tiles) == 8
        assert num_splits(256, 64, rows, tiles) == 1
    assert num_splits(4096, 4096, 512, quant_tiles(512)) == 1


def test_the_op_takes_it_by_name_and_keeps_leading_axes() -> None:
    case = CASES[0]
    packed, x = packed_of(case), rows_of(case)
    arrays = {k: jnp.asarray(v) for k, v in packed.arguments().items() if k not in packed.options}
    found = quant_matmul(
        jnp.asarray(x)[None], **arrays, **packed.options, implementation="simulated"
    )
    np.testing.assert_array_equal(np.asarray(found[0], np.float64), simulate(packed, x))


def call(**changes: Any) -> tuple[dict[str, Any], dict[str, Any], int]:
    given = {"columns": 4096, "outputs": 4096, "group": 128, "x": "bfloat16", "codes": "uint8"}
    given |= changes
    width = given["columns"] // 2 if given["codes"] == "uint8" else given["columns"]
    shapes = {"x": (8, given["columns"]), "codes": (given["outputs"], width)}
    return shapes, {name: given[name] for name in ("x", "codes")}, given["group"]


@pytest.mark.parametrize(
    ("changes", "platform", "reason"),
    [
        ({}, HOPPER, None),
        ({"group": 16}, HOPPER, None),
        ({"group": 1 << 20, "columns": 192}, HOPPER, None),
        ({"codes": "int8"}, HOPPER, None),
        ({"x": "float32"}, HOPPER, "x is float32; it takes bfloat16"),
        ({"codes": "float8_e4m3fn"}, HOPPER, "codes are float8_e4m3fn"),
        ({"outputs": 100}, HOPPER, "100 outputs; it takes multiples of 64"),
        ({"columns": 96, "group": 32}, HOPPER, "96 columns in groups of 32"),
        ({"group": 8}, HOPPER, "groups of 8"),
        ({"group": 96, "columns": 384}, HOPPER, "groups of 96"),
        ({}, Platform(kind="cpu"), "this is a cpu"),
        ({}, Platform(kind="gpu", compute_capability=(10, 0)), "has 10.0"),
    ],
)
def test_why_not(changes: dict[str, Any], platform: Platform, reason: str | None) -> None:
    shapes, dtypes, group = call(**changes)
    found = mosaic.why_not(shapes, dtypes, platform, group=group)
    assert found is None if reason is None else reason in str(found)
    options: dict[str, Any] = {"group": group, "platform": platform}
    chosen = resolve_implementation("auto", shapes, dtypes, **options)
    assert chosen == ("reference" if reason else "mosaic")
    if reason:
        with pytest.raises(ValueError, match="cannot use 'mosaic'.*'reference'"):
            resolve_implementation("mosaic", shapes, dtypes, **options)


def test_addends_need_a_tile_of_more_rows() -> None:
    case = next(case for case in CASES if case.name == "int4 with zeros")
    tiles = QuantTiles(warpgroups=1, block_rows=16, stages=2)
    with pytest.raises(ValueError, match="block_rows must be at least 32 with zeros or offsets"):
        simulate(packed_of(case), rows_of(case), tiles)
    assert quant_tiles(1, has_addend=True).block_rows == 32


@pytest.mark.parametrize(
    ("sizes", "rule"),
    [
        ({"warpgroups": 3, "block_rows": 16, "stages": 2}, "warpgroups=3 must be 1 or 2"),
        ({"warpgroups": 1, "block_rows": 24, "stages": 2}, "block_rows=24 must be one of"),
        ({"warpgroups": 1, "block_rows": 16, "stages": 1}, "at least 2"),
    ],
)
def test_tiles_say_their_constraints(sizes: dict[str, int], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        QuantTiles(**sizes)


def test_many_rows_of_a_plain_matrix_are_xla_s() -> None:
    x, matrix = jnp.ones((129, 64), jnp.bfloat16), jnp.ones((64, 64), jnp.bfloat16)
    assert plain_matmul_parts(x, matrix, implementation="mosaic").shape == (1, 129, 64)


def test_a_plain_matrix_that_no_kernel_serves_is_xla_s() -> None:
    shapes = {"x": (1, 4096), "matrix": (4096, 4096)}
    bf16 = dict.fromkeys(shapes, "bfloat16")
    assert resolve_plain("auto", shapes, bf16, HOPPER) == "mosaic"
    assert resolve_plain("mosaic", shapes, bf16, HOPPER) == "mosaic"
    assert resolve_plain("simulated", shapes, bf16) == "simulated"
    assert resolve_plain("reference", shapes, bf16, HOPPER) == "reference"
    assert resolve_plain("auto", shapes, bf16, Platform(kind="cpu")) == "reference"
    assert resolve_plain("mosaic", shapes, bf16 | {"matrix": "float32"}, HOPPER) == "reference"
    odd = {"x": (1, 4096), "matrix": (100, 4096)}
    assert resolve_plain("auto", odd, bf16, HOPPER) == "reference"
