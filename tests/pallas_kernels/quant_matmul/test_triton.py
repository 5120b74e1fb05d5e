"""`quant_matmul` in Triton: what it takes; numbers in the interpreter; compiled for an A100."""

from typing import Any

import pytest

from pallas_kernels.dispatch import Platform
from pallas_kernels.quant_matmul import resolve_implementation
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
    interpret("tests.pallas_kernels.quant_matmul.interpreted")


@needs_triton
@pytest.mark.parametrize(
    ("codes", "addend"),
    [
        ("int4", 2),
        *(
            pytest.param(codes, addend, marks=pytest.mark.slow)
            for codes, addend in [("int4", 0), ("int4", 1), ("int8", 0), ("int8", 1), ("int8", 2)]
        ),
    ],
)
def test_compiles_for_an_a100_without_spills(codes: str, addend: int) -> None:
    import jax
    import jax.numpy as jnp

    from pallas_kernels.quant_matmul.triton import (
        default_tiles,
        launch_options,
        quant_matmul_kernel,
    )

    kinds = {"int4": ((1024, 2048), jnp.uint8, "u8"), "int8": ((1024, 4096), jnp.int8, "i8")}
    shape, dtype, pointed = kinds[codes]
    pointers = {"x_ptr": "bf16", "codes_ptr": pointed, "scales_ptr": "bf16"}
    pointers |= {"addends_ptr": "i8" if addend == 1 else "bf16", "out_ptr": "fp32"}
    for rows in (1, 64):
        tiles = default_tiles(rows, has_offsets=addend == 2)
        packed = jax.ShapeDtypeStruct(shape, dtype)
        constants = launch_options((rows, 4096), packed, 128, addend, tiles)
        found = compile_triton(
            quant_matmul_kernel, pointers, constants, num_warps=4, stages=tiles.stages
        )
        assert not found.spill_bytes and found.shared_bytes <= 163 * 1024


def call(**changes: Any) -> tuple[dict[str, Any], dict[str, Any], int]:
    given = {"columns": 4096, "group": 128, "x": "bfloat16", "codes": "uint8"} | changes
    width = given["columns"] // 2 if given["codes"] == "uint8" else given["columns"]
    shapes = {"x": (8, given["columns"]), "codes": (100, width)}
    return shapes, {name: given[name] for name in ("x", "codes")}, given["group"]


@needs_jax_triton
@pytest.mark.parametrize(
    ("changes", "platform", "reason"),
    [
        ({}, AMPERE, None),
        ({"group": 16, "codes": "int8"}, AMPERE, None),
        ({"x": "float32"}, AMPERE, "x is float32; it takes bfloat16"),
        ({"codes": "float8_e4m3fn"}, AMPERE, "codes are float8_e4m3fn"),
        ({"group": 8}, AMPERE, "groups of 8"),
        ({}, Platform(kind="gpu", compute_capability=(7, 5)), "has 7.5"),
        ({}, Platform(kind="cpu"), "this is a cpu"),
        (
            {},
            Platform(kind="gpu", compute_capability=(8, 0), is_absent=True),
            "compiles only where such a GPU is",
        ),
    ],
)
def test_why_not(changes: dict[str, Any], platform: Platform, reason: str | None) -> None:
    shapes, dtypes, group = call(**changes)
    chosen = resolve_implementation("auto", shapes, dtypes, group=group, platform=platform)
    assert chosen == ("reference" if reason else "triton")
    if reason:
        with pytest.raises(ValueError, match=f"cannot use 'triton'.*{reason}"):
            resolve_implementation("triton", shapes, dtypes, group=group, platform=platform)
