"""`paged_attention` on Mosaic GPU compiled for GPUs that are not here: no spills, and it fits."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxinfer.config.targets import gpu_target
from pallas_kernels.paged_attention import HeadScaledPages, TokenScaledPages, mosaic
from pallas_kernels.paged_attention.mosaic_blocks import Softmax
from pallas_kernels.paged_attention.mosaic_merge import MERGED_HEAD_DIMS, merge_splits
from pallas_kernels.paged_attention.tiles import (
    BLOCK_ROWS,
    HEAD_DIMS,
    MAX_SPLITS,
    DecodeTiles,
    PrefillTiles,
    decode_choices,
    decode_tiles,
    prefill_choices,
    prefill_tiles,
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

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 512},
    "window and softcap": {"window": 512, "softcap": 50.0},
}
STEPS = {"decode": 1, "verify": 4, "prefill": 128}
Tiles = DecodeTiles | PrefillTiles


def pages_of(kind: str, head_dim: int) -> Any:
    """512 pages of 128 tokens, as shapes."""
    shape = (512, 2, 128, head_dim)
    if kind == "int8":
        scales = jax.ShapeDtypeStruct(shape[:3], jnp.bfloat16)
        return TokenScaledPages(jax.ShapeDtypeStruct(shape, jnp.int8), scales)  # type: ignore
    if kind == "fp8":
        scales = jax.ShapeDtypeStruct(shape[1:2], jnp.float32)
        return HeadScaledPages(jax.ShapeDtypeStruct(shape, jnp.float8_e4m3fn), scales)  # type: ignore
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def compile_call(
    step: str,
    head_dim: int,
    tiles: Tiles,
    options: str,
    kinds: tuple[str, str] = ("floats", "floats"),
    *,
    columns: int = 64,
    has_sinks: bool = False,
) -> KernelPlan:
    """Compiles one kernel for 8 rows of 8192 positions, 4 query heads a kv head, pages of 128.

    columns: pages of a row; with 8 there are no splits.
    """
    shapes = (
        jax.ShapeDtypeStruct((8, STEPS[step], 8, head_dim), jnp.bfloat16),
        *(pages_of(kind, head_dim) for kind in kinds),
        jax.ShapeDtypeStruct((8, columns), jnp.int32),
        *(jax.ShapeDtypeStruct((8,), jnp.int32) for _ in range(2)),
        *([jax.ShapeDtypeStruct((8,), jnp.float32)] if has_sinks else []),
    )
    run = functools.partial(mosaic.paged_attention, scale=0.1, tiles=tiles, **OPTIONS[options])
    _, reports = compile_kernels(jax.jit(run).lower(*on_target(HOPPERS[0], shapes)))
    assert {one.name for one in reports[1:]} <= {"merge_splits"}
    assert not [one for one in reports if one.spill_bytes]
    return reports[0]


def default_tiles(step: str, head_dim: int, options: str, *, has_codes: bool = False) -> Tiles:
    if step == "prefill":
        return prefill_tiles(head_dim, is_plain=options == "plain", has_codes=has_codes)
    return decode_tiles(head_dim, has_codes=has_codes)


def every_choice(step: str, head_dim: int, options: str, *, has_codes: bool = False) -> list[Tiles]:
    choices = prefill_choices if step == "prefill" else decode_choices
    is_plain = options == "plain"
    found = choices(head_dim, MOST_BYTES, is_plain=is_plain, has_codes=has_codes)
    assert default_tiles(step, head_dim, options, has_codes=has_codes) in found
    return [*found]


def label(step: str, head_dim: int, options: str, tiles: Tiles) -> str:
    sizes = f"{tiles.block_keys}x{tiles.stages}+{tiles.code_stages}"
    return f"{step} D={head_dim} {options} {sizes}"


@needs_aot
def test_default_tiles_compile_without_spills(capsys: pytest.CaptureFixture[str]) -> None:
    calls = [("decode", "plain"), ("verify", "window and softcap"), ("prefill", "plain")]
    rows = {}
    for step, options in calls:
        for head_dim in (128, 256) if options != "plain" else (64, 128):
            tiles = default_tiles(step, head_dim, options)
            found = compile_call(step, head_dim, tiles, options)
            rows[label(step, head_dim, options, tiles)] = found
    check_kernels(rows, capsys)


@needs_aot
def test_sinks_compile_without_spills(capsys: pytest.CaptureFixture[str]) -> None:
    """In the decode kernel without splits, where it takes them, and in the prefill kernel."""
    rows = {}
    for step, head_dim, options in (
        ("decode", 64, "plain"),
        ("decode", 128, "window"),
        ("decode", 256, "plain"),
        ("prefill", 64, "window"),
        ("prefill", 128, "plain"),
    ):
        tiles = default_tiles(step, head_dim, options)
        found = compile_call(step, head_dim, tiles, options, columns=8, has_sinks=True)
        rows[f"{label(step, head_dim, options, tiles)} sinks"] = found
    check_kernels(rows, capsys)


# Every kernel, head size and kind of pages once; all of their products are slow.
CODED = [
    ("decode", 128, "plain", ("int8", "int8")),
    ("decode", 256, "plain", ("fp8", "fp8")),
    ("verify", 64, "window and softcap", ("int8", "floats")),
    ("prefill", 128, "plain", ("fp8", "fp8")),
    ("prefill", 256, "window", ("int8", "int8")),
]
KINDS = [("int8", "int8"), ("fp8", "fp8"), ("int8", "floats")]


@needs_aot
def test_kernels_over_codes_compile_without_spills(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {}
    for step, head_dim, options, kinds in CODED:
        tiles = default_tiles(step, head_dim, options, has_codes=True)
        found = compile_call(step, head_dim, tiles, options, kinds)
        rows[f"{label(step, head_dim, options, tiles)} {'/'.join(kinds)}"] = found
        assert found.shared_bytes <= tiles.shared_bytes(head_dim) + 512  # barriers
    check_kernels(rows, capsys)


@needs_aot
def test_the_tiles_know_their_shared_memory() -> None:
    for step in ("decode", "prefill"):
        tiles = default_tiles(step, 128, "plain")
        found = compile_call(step, 128, tiles, "plain")
        assert 0 <= found.shared_bytes - tiles.shared_bytes(128) < 256  # barriers


def test_two_decode_programs_share_a_multiprocessor() -> None:
    """What keeps enough copies in flight; one KiB a program is the system's own."""
    per_core = gpu_target("h200").device_info["shared_memory_per_core"]
    for head_dim in (64, 128):
        assert 2 * (decode_tiles(head_dim).shared_bytes(head_dim) + 256 + 1024) <= per_core


def compile_merge(head_dim: int, num_splits: int, *, has_sinks: bool) -> KernelPlan:
    """8 rows of 2 kv heads with 4 query heads each; peaks and totals are filled up to 8."""
    shape = jax.ShapeDtypeStruct
    weighted = shape((8, 2, num_splits, 4, head_dim), jnp.float32)
    stats = shape((8, 2, num_splits, 8), jnp.float32)
    sinks = shape((2, BLOCK_ROWS), jnp.float32) if has_sinks else None
    arrays = (Softmax(weighted, stats, stats), sinks, *[shape((8,), jnp.int32)] * 2)  # type: ignore  # shapes
    sizes = {"split": 1024, "num_queries": 1, "group": 4}
    return compile_kernel(functools.partial(merge_splits, **sizes, interpret=False), *arrays)


@needs_aot
def test_the_merge_of_splits_compiles_without_spills(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {}
    for head_dim, has_sinks in itertools.product(MERGED_HEAD_DIMS, (False, True)):
        for num_splits in (2, MAX_SPLITS):
            name = f"merge of {num_splits} splits D={head_dim}{' sinks' * has_sinks}"
            rows[name] = compile_merge(head_dim, num_splits, has_sinks=has_sinks)
    check_kernels(rows, capsys)


@needs_aot
@pytest.mark.slow
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("step", STEPS)
def test_every_choice_compiles_without_spills(
    step: str, head_dim: int, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {}
    for options in OPTIONS:
        for tiles in every_choice(step, head_dim, options):
            found = compile_call(step, head_dim, tiles, options)
            rows[label(step, head_dim, options, tiles)] = found
    check_kernels(rows, capsys)


@needs_aot
@pytest.mark.slow
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("step", STEPS)
def test_every_choice_with_sinks_compiles_without_spills(
    step: str, head_dim: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """And without splits, where the decode kernel takes them. Over codes, and for the decode kernel
    without sinks, the defaults. No model has sinks and a softcap."""
    rows, sizes = {}, {"columns": 8, "has_sinks": True}
    for options in ("plain", "window"):
        for tiles in every_choice(step, head_dim, options):
            found = compile_call(step, head_dim, tiles, options, **sizes)
            rows[f"{label(step, head_dim, options, tiles)} sinks"] = found
        tiles = default_tiles(step, head_dim, options, has_codes=True)
        for kinds in KINDS:
            name = f"{label(step, head_dim, options, tiles)} {'/'.join(kinds)}"
            rows[f"{name} sinks"] = compile_call(step, head_dim, tiles, options, kinds, **sizes)
            if step != "prefill":
                found = compile_call(step, head_dim, tiles, options, kinds, columns=8)
                rows[f"{name} whole"] = found
        if step != "prefill":
            tiles = default_tiles(step, head_dim, options)
            found = compile_call(step, head_dim, tiles, options, columns=8)
            rows[f"{label(step, head_dim, options, tiles)} whole"] = found
    check_kernels(rows, capsys)


@needs_aot
@pytest.mark.slow
@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("step", STEPS)
def test_every_choice_over_codes_compiles_without_spills(
    step: str, head_dim: int, kinds: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {}
    for options in OPTIONS:
        for tiles in every_choice(step, head_dim, options, has_codes=True):
            found = compile_call(step, head_dim, tiles, options, kinds)
            rows[f"{label(step, head_dim, options, tiles)} {'/'.join(kinds)}"] = found
    check_kernels(rows, capsys)
