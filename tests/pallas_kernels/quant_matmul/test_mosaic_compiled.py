"""`quant_matmul` on Mosaic GPU compiled for GPUs that are not here: no spills, and it fits."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxinfer.config.targets import gpu_target
from pallas_kernels.quant_matmul import mosaic
from pallas_kernels.quant_matmul.tiles import (
    ROW_CHOICES,
    QuantTiles,
    plain_choices,
    plain_tiles,
    quant_tiles,
    tile_choices,
)
from tests.support.aot import KernelPlan, compile_kernels, needs_aot, on_target, table

BITS = {"int4": 4, "int8": 8}
ADDENDS = ("none", "zeros", "offsets")
COLUMNS, OUTPUTS = 4096, 1024


def compile_call(
    target: str, codes: str, addend: str, group: int, rows: int, tiles: QuantTiles
) -> tuple[Any, KernelPlan]:
    groups = -(-COLUMNS // group)
    shape = jax.ShapeDtypeStruct
    kinds = {"int4": (COLUMNS // 2, jnp.uint8), "int8": (COLUMNS, jnp.int8)}
    shapes = {
        "x": shape((rows, COLUMNS), jnp.bfloat16),
        "codes": shape((OUTPUTS, kinds[codes][0]), kinds[codes][1]),
        "scales": shape((groups, OUTPUTS), jnp.bfloat16),
    }
    if addend != "none":
        dtype = jnp.int8 if addend == "zeros" else jnp.bfloat16
        shapes[addend] = shape((groups, OUTPUTS), dtype)
    run = functools.partial(mosaic.quant_matmul, group=group, tiles=tiles)
    lowered = jax.jit(lambda arrays: run(**arrays)).lower(on_target(target, shapes))
    executable, reports = compile_kernels(lowered)
    assert len(reports) == 1
    return executable, reports[0]


def check(rows: dict[str, KernelPlan], target: str, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{table(rows)}")
    most = gpu_target(target).shared_memory_bytes
    assert not {label: one for label, one in rows.items() if one.spill_bytes}
    assert not {label: one for label, one in rows.items() if one.shared_bytes > most}


def label(target: str, codes: str, addend: str, group: int, tiles: QuantTiles) -> str:
    sizes = f"{tiles.warpgroups}x64 by {tiles.block_rows}, {tiles.stages} stages"
    return f"{target} {codes} {addend} g{min(group, COLUMNS)} {sizes}"


@needs_aot
def test_default_tiles_compile_without_spills(capsys: pytest.CaptureFixture[str]) -> None:
    calls = [
        ("int4", "none", 128, 64),
        ("int4", "zeros", 128, 16),
        ("int4", "offsets", 32, 64),
        ("int8", "none", COLUMNS, 64),
    ]
    rows = {}
    for codes, addend, group, num_rows in calls:
        tiles = quant_tiles(num_rows, group=group, has_addend=addend != "none")
        found = compile_call("h200", codes, addend, group, num_rows, tiles)[1]
        rows[label("h200", codes, addend, group, tiles)] = found
    check(rows, "h200", capsys)


@needs_aot
def test_the_codes_are_read_as_they_are() -> None:
    """The view of packed bytes as 4-bit integers costs nothing: no second matrix in memory."""
    tiles = quant_tiles(64)
    executable, report = compile_call("h200", "int4", "none", 128, 64, tiles)
    memory = executable.memory_analysis()
    assert memory.argument_size_in_bytes < OUTPUTS * COLUMNS // 2 * 1.1 + 64 * COLUMNS * 2
    text = executable.as_text()
    wide = [f"{dtype}[{OUTPUTS},{COLUMNS}]" for dtype in ("bf16", "f32", "s8")]
    assert not [shape for shape in wide if shape in text]
    assert 0 <= report.shared_bytes - tiles.shared_bytes(4) < 8192  # scales and barriers


@needs_aot
@pytest.mark.slow
@pytest.mark.parametrize("target", ["h200", "h100"])
@pytest.mark.parametrize("addend", ADDENDS)
@pytest.mark.parametrize("codes", BITS)
def test_every_choice_compiles_without_spills(
    codes: str, addend: str, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every tile choice with groups of 128; the defaults with every size of group."""
    most, rows = gpu_target(target).shared_memory_bytes, {}
    has_addend = addend != "none"
    choices = tile_choices(BITS[codes], most, has_addend=has_addend)
    calls = [(128, tiles) for tiles in choices]
    for group in (16, 32, 64, COLUMNS):
        for size in ROW_CHOICES:
            calls.append((group, quant_tiles(size, group=group, has_addend=has_addend)))
    for group, tiles in calls:
        found = compile_call(target, codes, addend, group, tiles.block_rows, tiles)[1]
        rows[label(target, codes, addend, group, tiles)] = found
    check(rows, target, capsys)


def compile_plain(target: str, tiles: QuantTiles) -> KernelPlan:
    shapes = [
        jax.ShapeDtypeStruct((rows, COLUMNS), jnp.bfloat16) for rows in (tiles.block_rows, OUTPUTS)
    ]
    run = functools.partial(mosaic.plain_matmul_parts, tiles=tiles)
    _, reports = compile_kernels(jax.jit(run).lower(*on_target(target, shapes)))
    assert len(reports) == 1
    return reports[0]


@needs_aot
def test_default_tiles_of_plain_matrices_compile_without_spills(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = {}
    for size in (16, 64):
        tiles = plain_tiles(size)
        rows[label("h200", "bf16", "none", COLUMNS, tiles)] = compile_plain("h200", tiles)
    check(rows, "h200", capsys)
    assert all(2 * one.shared_bytes <= 227 * 1024 for one in rows.values())  # two at once


@needs_aot
@pytest.mark.slow
@pytest.mark.parametrize("target", ["h200", "h100"])
def test_every_choice_of_plain_matrices_compiles_without_spills(
    target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    most, rows = gpu_target(target).shared_memory_bytes, {}
    for tiles in plain_choices(most):
        rows[label(target, "bf16", "none", COLUMNS, tiles)] = compile_plain(target, tiles)
    check(rows, target, capsys)
