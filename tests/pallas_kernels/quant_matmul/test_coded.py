"""Products of codes with codes: who multiplies, and what is compiled for GPUs not here."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxinfer.config.targets import gpu_target
from jaxinfer.jobs.hlo_text import parse_program
from pallas_kernels.dispatch import HOPPER, Platform
from pallas_kernels.quant_matmul import coded_matmul_parts, mosaic, resolve_coded, xla
from tests.support.aot import compile_kernels, needs_aot, on_target, table

AMPERE = Platform(kind="gpu", compute_capability=(8, 0))
# Every tile of rows, each with one scale an output and with groups.
SIZES = [(rows, group) for rows in (16, 32, 64, 128) for group in (1 << 20, 128)]


def call(codes: str, columns: int = 4096) -> tuple[dict[str, Any], dict[str, str]]:
    shapes = {"x": (1, columns), "codes": (4096, columns)}
    return shapes, dict.fromkeys(shapes, codes)


def chosen(codes: str, platform: Platform, wanted: str = "auto", **options: int) -> str:
    given = {"group": 1 << 20, "out_group": 1} | options
    return resolve_coded(wanted, *call(codes), platform=platform, **given)


def test_who_multiplies() -> None:
    for codes in ("int8", "float8_e4m3fn"):
        assert chosen(codes, HOPPER) == "mosaic"
        assert chosen(codes, HOPPER, group=128, out_group=128) == "mosaic"
        assert chosen(codes, HOPPER, group=64) == "reference"
        assert chosen(codes, Platform(kind="cpu")) == "reference"
        assert chosen(codes, HOPPER, "reference") == "reference"
        assert chosen(codes, Platform(kind="cpu"), "simulated") == "simulated"
    assert chosen("int8", AMPERE) == "xla"
    assert chosen("float8_e4m3fn", AMPERE) == "reference"
    reason = xla.why_not_coded(*call("float8_e4m3fn"), AMPERE, group=1 << 20, out_group=1)
    assert "capability 8.0) has no products of float8_e4m3fn" in str(reason)
    reason = mosaic.why_not_coded(*call("int8", 192), HOPPER, group=1 << 20, out_group=1)
    assert "192 columns" in str(reason)


def shapes_of(kind: str, rows: int, group: int = 1 << 20) -> list[jax.ShapeDtypeStruct]:
    dtype, columns, outputs = {"int8": jnp.int8, "fp8": jnp.float8_e4m3fn}[kind], 4096, 4096
    groups = -(-columns // group)
    shape = jax.ShapeDtypeStruct
    return [
        shape((rows, columns), dtype),
        shape((rows, groups), jnp.float32),
        shape((outputs, columns), dtype),
        shape((groups, outputs), jnp.bfloat16),
    ]


@needs_aot
@pytest.mark.parametrize(
    ("target", "sizes"),
    [
        ("h200", [(64, 128)]),
        pytest.param("h200", SIZES, marks=pytest.mark.slow),
        pytest.param("h100", SIZES, marks=pytest.mark.slow),
    ],
)
def test_the_kernel_compiles_without_spills(
    target: str, sizes: list[tuple[int, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {}
    for kind in ("int8", "fp8"):
        for size, group in sizes:
            run = functools.partial(coded_matmul_parts, group=group, implementation="mosaic")
            lowered = jax.jit(run).lower(*on_target(target, shapes_of(kind, size, group)))
            _, reports = compile_kernels(lowered)
            label = f"{target} {kind} by {kind}, {size} rows, groups of {min(group, 4096)}"
            rows[label] = reports[0]
    with capsys.disabled():
        print(f"\n{table(rows)}")
    most = gpu_target(target).shared_memory_bytes
    assert not {label: one for label, one in rows.items() if one.spill_bytes}
    assert not {label: one for label, one in rows.items() if one.shared_bytes > most}


@needs_aot
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_many_rows_are_a_product_of_8_bits_in_xla(kind: str) -> None:
    """No matrix is widened: what multiplies reads the codes themselves."""
    run = functools.partial(coded_matmul_parts, group=1 << 20, implementation="mosaic")
    executable = jax.jit(run).lower(*on_target("h200", shapes_of(kind, 512))).compile()
    program, code = parse_program(executable.as_text()), {"int8": "s8", "fp8": "f8e4m3fn"}[kind]
    products = [
        (one, lines)
        for lines in program.computations.values()
        for one in lines.values()
        if one.opcode == "dot" or one.target.startswith("__cublas")
    ]
    assert len(products) == 1
    product, lines = products[0]
    for operand in product.operands[:2]:
        (array,) = lines[operand].arrays
        assert array.dtype == code, (product, array)
    wide = [
        one
        for lines in program.computations.values()
        for one in lines.values()
        for array in one.arrays
        if sorted(array.dims) == [4096, 4096] and array.dtype not in (code, "s8", "u8")
    ]
    assert not wide
