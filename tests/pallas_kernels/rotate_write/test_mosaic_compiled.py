"""`rotate_write` on Mosaic GPU compiled for GPUs that are not here: no spills, and it fits."""

import functools
import itertools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.checkpoint.hf_config import read_hf_config
from pallas_kernels.dispatch import HOPPER
from pallas_kernels.quant_matmul.tiles import num_splits, plain_tiles
from pallas_kernels.rotate_write import HeadNorms, mosaic
from pallas_kernels.rotate_write.cases import CASES, Case
from pallas_kernels.rotate_write.mosaic import HEAD_DIMS
from tests.support.aot import (
    HOPPERS,
    KernelPlan,
    check_kernels,
    compile_kernels,
    needs_aot,
    on_target,
)

CONFIGS = Path(__file__).parents[2] / "data/configs"
MOST_PARTS = 8  # 4096 columns past few outputs


def shapes_of(case: Case) -> tuple[list[Any], dict[str, Any]]:
    """The op's arguments; pages for every token."""
    shape, size = jax.ShapeDtypeStruct, case.head_dim
    count = case.num_heads + 2 * case.num_kv_heads
    num_pages = 1 + -(-case.num_tokens // case.page_tokens)
    parts = shape((case.parts, case.num_tokens, count * size), jnp.float32)
    pages = shape((num_pages, case.num_kv_heads, case.page_tokens, size), jnp.bfloat16)
    angles = shape((case.num_tokens, size // 2), jnp.float32)
    places = shape((case.num_tokens,), jnp.int32)
    norms = HeadNorms(*[shape((size,), jnp.float32)] * 2) if case.has_norms else None  # type: ignore  # shapes
    arrays = [parts, pages, pages, angles, angles, places, places, norms]
    return arrays, {"num_heads": case.num_heads, "eps": 1e-6}


def compile_case(case: Case) -> KernelPlan:
    """Compiles it with its pages updated in place."""
    shapes, options = shapes_of(case)
    run = jax.jit(functools.partial(mosaic.rotate_write, **options), donate_argnums=(1, 2))
    executable, reports = compile_kernels(run.lower(*on_target(HOPPERS[0], shapes)))
    pages = 2 * np.prod(shapes[1].shape) * jnp.dtype("bfloat16").itemsize
    assert executable.memory_analysis().alias_size_in_bytes == pages
    assert " copy(" not in executable.as_text()
    assert [one.name for one in reports] == ["rotate_write"]
    return reports[0]


def label(case: Case) -> str:
    norms = " normed" if case.has_norms else ""
    heads = f"{case.num_heads}+{case.num_kv_heads} heads of {case.head_dim}{norms}"
    return f"{heads}, {case.parts} parts: {case.name}"


def cases_of_models() -> list[Case]:
    """Of the models whose sizes are known: a product in one part, and in as many as its kernel
    makes of a decode step."""
    cases = []
    for folder in sorted(CONFIGS.iterdir()):
        config, _, _ = read_hf_config(folder)
        heads = {"num_heads": config.num_heads, "num_kv_heads": config.num_kv_heads}
        pages = (1, config.num_kv_heads, 128, config.head_dim)
        shapes = {"cos": (1, config.head_dim // 2), "k_pages": pages, "v_pages": pages}
        dtypes = dict.fromkeys(("k_pages", "v_pages"), "bfloat16")
        if mosaic.why_not(shapes, dtypes, HOPPER, num_heads=config.num_heads):
            continue
        outputs = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        splits = num_splits(config.hidden_size, outputs, 64, plain_tiles(64))
        cases += [
            Case(
                name=folder.name,
                num_tokens=64,
                head_dim=config.head_dim,
                parts=parts,
                has_norms=config.qk_norm,
                page_tokens=128,
                **heads,
            )
            for parts in sorted({1, splits})
        ]
    return cases


@needs_aot
def test_compiles_without_spills_and_in_place(capsys: pytest.CaptureFixture[str]) -> None:
    cases = [case for case in CASES if "8b decode" in case.name]
    check_kernels({label(case): compile_case(case) for case in cases}, capsys)


@needs_aot
@pytest.mark.slow
def test_every_model_compiles_without_spills(capsys: pytest.CaptureFixture[str]) -> None:
    cases = cases_of_models()
    assert len({case.name for case in cases}) > 8
    check_kernels({label(case): compile_case(case) for case in [*CASES, *cases]}, capsys)


@needs_aot
@pytest.mark.slow
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_every_form_compiles_without_spills(
    head_dim: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Few heads, as many as a program takes and more, with norms and without, in any number of
    parts."""
    rows, parts = {}, (1, 2, 3, 4, MOST_PARTS)
    layouts = ((2, 2), (32, 16), (64, 8))
    for heads, has_norms, count in itertools.product(layouts, (False, True), parts):
        case = Case(
            name="any",
            num_tokens=64,
            num_heads=heads[0],
            num_kv_heads=heads[1],
            head_dim=head_dim,
            parts=count,
            has_norms=has_norms,
            page_tokens=128,
        )
        rows[label(case)] = compile_case(case)
    check_kernels(rows, capsys)
