"""`quant_matmul` on Mosaic GPU compiled for GPUs that are not here: no spills, and it fits."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.quant_matmul import mosaic
from pallas_kernels.quant_matmul.tiles import (
    ROW_CHOICES,
    QuantTiles,
    plain_choices,
    plain_tiles,
    quant_tiles,
    tile_choices,
)
from tests.support.aot import (
    HOPPERS,
    MOST_BYTES,
    KernelPlan,
    check_kernels,
    compile_kernel,
    compile_kernels,
    needs_aot,
    on_target,
)

BITS = {"int4": 4, "int8": 8}
ADDENDS = ("none", "zeros", "offsets")
COLUMNS, OUTPUTS = 4096, 1024


def compile_call(
    codes: str,
    addend: str,
    group: int,
    tiles: QuantTiles,
    *,
    scales: Any = jnp.bfloat16,
    is_stack: bool = False,
) -> tuple[Any, KernelPlan]:
    """The kernel of one tile of rows; of a stack, of four matrices with so many each."""
    groups, stack = -(-COLUMNS // group), (4,) if is_stack else ()
    shape = jax.ShapeDtypeStruct
    kinds = {"int4": (COLUMNS // 2, jnp.uint8), "int8": (COLUMNS, jnp.int8)}
    shapes = {
        "x": shape((*stack, tiles.block_rows, COLUMNS), jnp.bfloat16),
        "codes": shape((*stack, OUTPUTS, kinds[codes][0]), kinds[codes][1]),
        "scales": shape((*stack, groups, OUTPUTS), scales),
    }
    if addend != "none":
        dtype = jnp.int8 if addend == "zeros" else scales
        shapes[addend] = shape((*stack, groups, OUTPUTS), dtype)
    if is_stack:
        shapes["counts"] = shape(stack, jnp.int32)
    op = mosaic.stacked_quant_matmul if is_stack else mosaic.quant_matmul
    run = functools.partial(op, group=group, tiles=tiles)
    lowered = jax.jit(lambda arrays: run(**arrays)).lower(on_target(HOPPERS[0], shapes))
    executable, reports = compile_kernels(lowered)
    assert len(reports) == 1
    return executable, reports[0]


def label(codes: str, addend: str, group: int, tiles: QuantTiles) -> str:
    sizes = f"{tiles.warpgroups}x64 by {tiles.block_rows}, {tiles.stages} stages"
    return f"{codes} {addend} g{min(group, COLUMNS)} {sizes}"


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
        rows[label(codes, addend, group, tiles)] = compile_call(codes, addend, group, tiles)[1]
    check_kernels(rows, capsys)


@needs_aot
def test_the_codes_are_read_as_they_are() -> None:
    """The view of packed bytes as 4-bit integers costs nothing: no second matrix in memory."""
    tiles = quant_tiles(64)
    executable, report = compile_call("int4", "none", 128, tiles)
    memory = executable.memory_analysis()
    assert memory.argument_size_in_bytes < OUTPUTS * COLUMNS // 2 * 1.1 + 64 * COLUMNS * 2
    text = executable.as_text()
    wide = [f"{dtype}[{OUTPUTS},{COLUMNS}]" for dtype in ("bf16", "f32", "s8")]
    assert not [shape for shape in wide if shape in text]
    assert 0 <= report.shared_bytes - tiles.shared_bytes(4) < 8192  # scales and barriers


@needs_aot
@pytest.mark.slow
@pytest.mark.parametrize("is_stack", [False, True], ids=["matrix", "stack"])
@pytest.mark.parametrize("addend", ADDENDS)
@pytest.mark.parametrize("codes", BITS)
def test_every_choice_compiles_without_spills(
    codes: str, addend: str, is_stack: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every tile choice with groups of 128; the defaults with every size of group, and with scales
    of other types in the smallest and the usual ones."""
    rows, has_addend = {}, addend != "none"
    choices = tile_choices(BITS[codes], MOST_BYTES, has_addend=has_addend)
    calls: list[tuple[int, QuantTiles, Any]] = [(128, one, jnp.bfloat16) for one in choices]
    for group, size in itertools.product((16, 32, 64, COLUMNS), ROW_CHOICES):
        tiles = quant_tiles(size, group=group, has_addend=has_addend)
        calls.append((group, tiles, jnp.bfloat16))
    for group, size in itertools.product((16, 128), ROW_CHOICES):
        tiles = quant_tiles(size, group=group, has_addend=has_addend)
        assert tiles in choices
        types = () if is_stack else (jnp.float16, jnp.float32)
        calls += [(group, tiles, scales) for scales in types]
    for group, tiles, scales in calls:
        options = {"scales": scales, "is_stack": is_stack}
        found = compile_call(codes, addend, group, tiles, **options)[1]
        rows[f"{label(codes, addend, group, tiles)} {jnp.dtype(scales)}"] = found
    check_kernels(rows, capsys)


def compile_plain(tiles: QuantTiles) -> KernelPlan:
    shapes = [
        jax.ShapeDtypeStruct((rows, COLUMNS), jnp.bfloat16) for rows in (tiles.block_rows, OUTPUTS)
    ]
    return compile_kernel(functools.partial(mosaic.plain_matmul_parts, tiles=tiles), *shapes)


@needs_aot
def test_default_tiles_of_plain_matrices_compile_without_spills(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = {}
    for size in (16, 64):
        tiles = plain_tiles(size)
        rows[label("bf16", "none", COLUMNS, tiles)] = compile_plain(tiles)
    check_kernels(rows, capsys)
    assert all(2 * one.shared_bytes <= 227 * 1024 for one in rows.values())  # two at once


@needs_aot
@pytest.mark.slow
def test_every_choice_of_plain_matrices_compiles_without_spills(
    capsys: pytest.CaptureFixture[str],
) -> None:
    choices, rows = plain_choices(MOST_BYTES), {}
    assert {plain_tiles(size) for size in ROW_CHOICES} <= set(choices)
    for tiles in choices:
        rows[label("bf16", "none", COLUMNS, tiles)] = compile_plain(tiles)
    check_kernels(rows, capsys)
