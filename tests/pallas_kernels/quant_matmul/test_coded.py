"""Products of codes with codes: who multiplies, and what is compiled for GPUs not here."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxinfer.jobs.hlo_text import parse_program
from pallas_kernels.dispatch import HOPPER, Platform
from pallas_kernels.quant_matmul import coded_matmul_parts, mosaic, resolve_coded, xla
from pallas_kernels.quant_matmul.tiles import QuantTiles, coded_choices, coded_tiles
from tests.support.aot import (
    MOST_BYTES,
    KernelPlan,
    check_kernels,
    compile_kernel,
    needs_aot,
    on_target,
)

AMPERE = Platform(kind="gpu", compute_capability=(8, 0))


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


def shapes_of(
    kind: str, rows: int, group: int = 1 << 20, out_group: int = 1, scales: Any = jnp.bfloat16
) -> list[jax.ShapeDtypeStruct]:
    dtype, columns, outputs = {"int8": jnp.int8, "fp8": jnp.float8_e4m3fn}[kind], 4096, 4096
    groups = -(-columns // group)
    shape = jax.ShapeDtypeStruct
    return [
        shape((rows, columns), dtype),
        shape((rows, groups), jnp.float32),
        shape((outputs, columns), dtype),
        shape((groups, outputs // out_group), scales),
    ]


def compile_coded(
    rows: dict[str, KernelPlan],
    kind: str,
    tiles: QuantTiles,
    group: int,
    out_group: int = 1,
    scales: Any = jnp.bfloat16,
) -> None:
    """Adds the kernel of such a call to the rows of a table."""
    sizes = {"group": group, "out_group": out_group}
    shapes = shapes_of(kind, tiles.block_rows, **sizes, scales=scales)
    run = functools.partial(mosaic.coded_matmul_parts, tiles=tiles, **sizes)
    what = f"{kind} by {kind} g{out_group}x{min(group, 4096)} {jnp.dtype(scales)}"
    sizes_of = f"{tiles.warpgroups}x64 by {tiles.block_rows}, {tiles.stages} stages"
    rows[f"{what} {sizes_of}"] = compile_kernel(run, *shapes)


@needs_aot
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_default_tiles_compile_without_spills(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: dict[str, KernelPlan] = {}
    compile_coded(rows, kind, coded_tiles(1), 1 << 20)
    compile_coded(rows, kind, coded_tiles(64), 128, 128)
    check_kernels(rows, capsys)


@needs_aot
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_every_choice_compiles_without_spills(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one scale an output and with scales of groups; the defaults also with scales of blocks
    (which are an output's before they reach the kernel), of other types, and of longer groups."""
    choices, rows = coded_choices(MOST_BYTES), {}
    defaults = [coded_tiles(size) for size in (1, 64)]
    assert {one.block_rows for one in defaults} == {32, 64} and set(defaults) <= set(choices)
    for group, tiles in itertools.product((1 << 20, 128), choices):
        compile_coded(rows, kind, tiles, group)
    for tiles in defaults:
        compile_coded(rows, kind, tiles, 128, 128)
        compile_coded(rows, kind, tiles, 256)
        for scales, group in itertools.product((jnp.float16, jnp.float32), (1 << 20, 128)):
            compile_coded(rows, kind, tiles, group, scales=scales)
    check_kernels(rows, capsys)


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
