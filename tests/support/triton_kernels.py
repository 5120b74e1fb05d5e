"""Triton kernels where no GPU is: compiled for one, and run in Triton's interpreter.

`needs_triton`, `needs_jax_triton` and `needs_interpreter` mark tests: they are skipped with a
reason where triton, what launches its kernels, or torch for the interpreter's arrays is missing.
"""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxinfer.jobs.plan_records import KernelPlan
from pallas_kernels.dispatch import Platform
from pallas_kernels.triton_compat import why_not_triton

A100 = (80, 32)  # compute capability times ten, threads of a warp


def needs_triton(test: Callable[..., Any]) -> Callable[..., Any]:
    """Skips a test where triton is missing."""
    is_missing = importlib.util.find_spec("triton") is None
    return pytest.mark.skipif(is_missing, reason="triton is not installed")(test)


def needs_jax_triton(test: Callable[..., Any]) -> Callable[..., Any]:
    """Skips a test where the packages that launch kernels are missing, or do not fit together."""
    reason = why_not_triton(Platform(kind="gpu", compute_capability=(8, 0)))
    return pytest.mark.skipif(reason is not None, reason=str(reason))(test)


def needs_interpreter(test: Callable[..., Any]) -> Callable[..., Any]:
    """Skips a test where triton, or torch for its arrays, is missing."""
    is_missing = importlib.util.find_spec("torch") is None
    return needs_triton(pytest.mark.skipif(is_missing, reason="torch is not installed")(test))


def interpret(module: str) -> None:
    """Runs a module's checks in a process of its own, in which kernels are interpreted."""
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", module]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def compile_triton(
    kernel: Any, pointers: dict[str, str], constants: dict[str, Any], *, num_warps: int, stages: int
) -> KernelPlan:
    """The kernel compiled for an A100, down to its assembler's report.

    Args:
        pointers: type of what each argument points to, as Triton spells it. constants: the others.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {name: f"*{kind}" for name, kind in pointers.items()}
    signature |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    # Products merge with additions, as they do where jax-triton compiles.
    options = {"num_warps": num_warps, "num_stages": stages, "enable_fp_fusion": True}
    made = triton.compile(source, target=GPUTarget("cuda", *A100), options=options)
    assert made.asm["cubin"]
    registers, spills = _assembler_report(made.asm["ptx"])
    return KernelPlan(
        name=kernel.__name__,
        registers=registers,
        spill_bytes=spills,
        shared_bytes=made.metadata.shared,
    )


def _assembler_report(ptx: str) -> tuple[int, int]:
    """Registers and bytes of spills, as the assembler says them."""
    import triton

    assembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kernel.ptx").write_text(ptx, encoding="utf-8")
        command = [str(assembler), "-v", "--gpu-name=sm_80", "kernel.ptx", "-o", "kernel.cubin"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    said = done.stdout + done.stderr
    spills = sum(map(int, re.findall(r"(\d+) bytes spill", said)))
    return int(re.findall(r"Used (\d+) registers", said)[0]), spills
