"""Random calls of `plain_matmul_parts` and `coded_matmul_parts`, and what they must give."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from pallas_kernels.quant_matmul import coded_matmul_parts, plain_matmul_parts
from pallas_kernels.quant_matmul.cases import ProductCase
from tests.support.tolerances import KERNELS

DTYPES = {"bf16": ml_dtypes.bfloat16, "int8": np.int8, "fp8": ml_dtypes.float8_e4m3fn}


@dataclass(frozen=True, kw_only=True)
class Product:
    """The op, its arrays (of the rows, then of the matrix) and options; and x · Wᵀ in float64."""

    op: Any
    of_rows: list[np.ndarray]
    of_matrix: list[np.ndarray]
    options: dict[str, int]
    exact: np.ndarray


def make_product(case: ProductCase, seed: int = 0) -> Product:
    random = np.random.default_rng(seed)
    x, x_factors = _coded(random, case, case.rows, 1)
    matrix, factors = _coded(random, case, case.outputs, case.out_group)
    if case.kind == "bf16":
        exact = x.astype(np.float64) @ matrix.astype(np.float64).T
        return Product(
            op=plain_matmul_parts, of_rows=[x], of_matrix=[matrix], options={}, exact=exact
        )
    factors = factors.astype(getattr(ml_dtypes, case.scales, case.scales))
    wide_x = x.astype(np.float64) * _spread(x_factors, case.group, 1, x.shape)
    wide = matrix.astype(np.float64) * _spread(factors, case.group, case.out_group, matrix.shape)
    return Product(
        op=coded_matmul_parts,
        of_rows=[x, x_factors],
        of_matrix=[matrix, np.ascontiguousarray(factors.T)],
        options={"group": case.group, "out_group": case.out_group},
        exact=wide_x @ wide.T,
    )


def _coded(
    random: np.random.Generator, case: ProductCase, rows: int, out_group: int
) -> tuple[np.ndarray, np.ndarray]:
    """Random [rows, columns] of the case's kind, and their scales [blocks of rows, groups]."""
    shape = (rows, case.columns)
    if case.kind == "int8":
        values = random.integers(-128, 128, shape)
    else:
        values = random.normal(0, 1 if case.kind == "bf16" else 100, shape).clip(-448, 448)
    places = (-(-rows // out_group), -(-case.columns // case.group))
    scales = random.uniform(0.01, 0.1, places).astype(np.float32)
    return values.astype(DTYPES[case.kind]), scales


def _spread(factors: np.ndarray, group: int, out_group: int, shape: tuple[int, ...]) -> np.ndarray:
    """Each factor over its block, cut off where the matrix ends."""
    group = min(group, shape[1])
    wide = np.repeat(np.repeat(factors.astype(np.float64), out_group, axis=0), group, axis=1)
    return wide[: shape[0], : shape[1]]


def run_product(product: Product, implementation: Any = "simulated") -> jax.Array:
    """[parts, rows, outputs] f32."""

    def run(of_rows: list[jax.Array], of_matrix: list[jax.Array]) -> jax.Array:
        options = product.options | {"implementation": implementation}
        return product.op(*of_rows, *of_matrix, **options)

    arrays = jax.tree.map(jnp.asarray, (product.of_rows, product.of_matrix))
    return jax.jit(run)(*arrays)


def assert_close(product: Product, parts: jax.Array) -> None:
    """Only sums are rounded, in float32."""
    assert parts.shape[1:] == product.exact.shape and parts.dtype == jnp.float32
    found = np.asarray(parts, np.float64).sum(axis=0)
    assert np.isfinite(found).all()
    difference = np.linalg.norm(found - product.exact)
    assert difference <= KERNELS["float32"] * np.linalg.norm(product.exact)
