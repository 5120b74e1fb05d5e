"""`paged_attention` in Triton: what it takes; numbers in the interpreter; compiled for an A100."""

from typing import Any

import pytest

from pallas_kernels.dispatch import Platform
from pallas_kernels.paged_attention import resolve_implementation
from tests.support.triton_kernels import (
    compile_triton,
    interpret,
    needs_interpreter,
    needs_jax_triton,
    needs_triton,
)

AMPERE = Platform(kind="gpu", compute_capability=(8, 0))


@needs_interpreter
@pytest.mark.slow
def test_interpreted_equals_float64() -> None:
    interpret("tests.pallas_kernels.paged_attention.interpreted")


@needs_triton
@pytest.mark.parametrize(
    ("rows", "head_dim", "options"),
    [
        (512, 128, {"window": 0, "softcap": 0.0}),
        *(
            pytest.param(*call, marks=pytest.mark.slow)
            for call in [
                (4, 128, {"window": 0, "softcap": 0.0}),
                (4, 256, {"window": 1024, "softcap": 50.0}),
                (512, 256, {"window": 1024, "softcap": 50.0}),
                (64, 64, {"window": 0, "softcap": 0.0}),
            ]
        ),
    ],
)
def test_compiles_for_an_a100_without_spills(
    rows: int, head_dim: int, options: dict[str, Any]
) -> None:
    from pallas_kernels.paged_attention.triton import (
        default_tiles,
        launch_options,
        paged_attention_kernel,
    )

    tiles = default_tiles(rows, head_dim, 128)
    pages = (9, 8, 128, head_dim)
    constants = launch_options(rows, 4, pages, 64, tiles, scale=head_dim**-0.5, **options)
    pointers = dict.fromkeys(("q_ptr", "k_ptr", "v_ptr"), "bf16")
    pointers |= dict.fromkeys(("table_ptr", "starts_ptr", "lengths_ptr"), "i32")
    pointers |= dict.fromkeys(("weighted_ptr", "peak_ptr", "total_ptr"), "fp32")
    warps = 4 if head_dim <= 128 else 8
    found = compile_triton(
        paged_attention_kernel, pointers, constants, num_warps=warps, stages=tiles.stages
    )
    assert not found.spill_bytes and found.shared_bytes <= 163 * 1024, found


def call(**changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    given = {"size": 128, "tokens": 128, "q": "bfloat16", "pages": "bfloat16"} | changes
    pages = (9, 8, given["tokens"], given["size"])
    shapes = {"q": (64, 1, 32, given["size"]), "k_pages": pages, "v_pages": pages}
    return shapes, {"q": given["q"], "k_pages": given["pages"], "v_pages": given["pages"]}


@needs_jax_triton
@pytest.mark.parametrize(
    ("changes", "platform", "reason"),
    [
        ({}, AMPERE, None),
        ({"pages": "int8"}, AMPERE, "k_pages is int8; it takes bfloat16"),
        ({"size": 96}, AMPERE, "heads have 96 values"),
        ({"tokens": 8}, AMPERE, "pages hold 8 tokens"),
        ({}, Platform(kind="cpu"), "this is a cpu"),
    ],
)
def test_why_not(changes: dict[str, Any], platform: Platform, reason: str | None) -> None:
    shapes, dtypes = call(**changes)
    chosen = resolve_implementation("auto", shapes, dtypes, platform)
    assert (chosen == "triton") == (reason is None)
    if reason:
        with pytest.raises(ValueError, match=f"cannot use 'triton'.*{reason}"):
            resolve_implementation("triton", shapes, dtypes, platform)
