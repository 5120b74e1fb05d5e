"""`rms_norm` in Triton: what it takes; numbers in the interpreter; compiled for an A100."""

import pytest

from pallas_kernels.dispatch import Platform
from pallas_kernels.rms_norm import resolve_implementation
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
    interpret("tests.pallas_kernels.rms_norm.interpreted")


@needs_triton
def test_compiles_for_an_a100_without_spills() -> None:
    from pallas_kernels.rms_norm.triton import launch_options, rms_norm_kernel

    pointers = {"x_ptr": "bf16", "weight_ptr": "fp32", "out_ptr": "bf16"}
    constants = launch_options(4096, 1e-5)
    found = compile_triton(rms_norm_kernel, pointers, constants, num_warps=8, stages=2)
    assert found.registers <= 255 and not found.spill_bytes


@needs_jax_triton
@pytest.mark.parametrize(
    ("columns", "dtype", "reason"),
    [(16385, "bfloat16", "up to 16384"), (64, "float16", "x is float16")],
)
def test_why_not(columns: int, dtype: str, reason: str) -> None:
    assert resolve_implementation("triton", AMPERE, (4096,), "bfloat16") == "triton"
    with pytest.raises(ValueError, match=f"rms_norm cannot use 'triton'.*{reason}"):
        resolve_implementation("triton", AMPERE, (columns,), dtype)


def test_auto_leaves_a_norm_to_xla() -> None:
    assert resolve_implementation("auto", AMPERE, (4096,), "bfloat16") == "xla"
