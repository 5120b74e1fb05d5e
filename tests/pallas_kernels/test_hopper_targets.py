"""A kernel is the same for every Hopper GPU: what is compiled for one needs no other test."""

import functools
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxinfer.config.targets import gpu_target
from jaxinfer.jobs.kernel_report import dumped_kernels
from pallas_kernels.grouped_matmul import mosaic as grouped
from pallas_kernels.paged_attention import mosaic as attention
from pallas_kernels.quant_matmul import mosaic as quantized
from tests.support.aot import HOPPERS, needs_aot, on_target

ROOT = Path(__file__).parents[2]


def calls() -> dict[str, tuple[Any, list[Any]]]:
    """A call of an op and its shapes, by the name of the kernel."""
    shape = jax.ShapeDtypeStruct
    pages = shape((16, 2, 128, 128), jnp.bfloat16)
    integers = [shape((8,), jnp.int32)] * 2
    table = shape((8, 64), jnp.int32)
    attend = functools.partial(attention.paged_attention, scale=0.1)
    product = functools.partial(quantized.quant_matmul, group=128)
    codes = [shape((64, 4096), jnp.bfloat16), shape((1024, 2048), jnp.uint8)]
    stack = [shape((4, 64, 512), jnp.bfloat16), shape((4, 768, 512), jnp.bfloat16)]

    def of_queries(count: int) -> list[Any]:
        return [shape((8, count, 8, 128), jnp.bfloat16), pages, pages, table, *integers]

    return {
        "decode_attention": (attend, of_queries(1)),
        "prefill_attention": (attend, of_queries(128)),
        "quant_matmul": (product, [*codes, shape((32, 1024), jnp.bfloat16)]),
        "grouped_matmul": (grouped.grouped_matmul, [*stack, shape((4,), jnp.int32)]),
    }


def lower(name: str, target: str) -> Any:
    run, shapes = calls()[name]
    return jax.jit(run).lower(*on_target(target, shapes))


@needs_aot
@pytest.mark.parametrize("name", ["decode_attention", "quant_matmul"])
def test_the_compiler_is_given_the_same_program(name: str) -> None:
    first, *others = (lower(name, target).as_text() for target in HOPPERS)
    assert "kernel_hash" in first and others == [first] * len(others)
    capabilities = {gpu_target(target).compute_capability for target in HOPPERS}
    assert capabilities == {(9, 0)}


def ptx_hashes(target: str) -> dict[str, str]:
    """What this process compiles the calls to; it must not have compiled them before."""
    found = {}
    with dumped_kernels() as folder:
        for name in calls():
            lower(name, target).compile()
        for path in sorted(folder.glob("*.ptx")):
            found[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


@needs_aot
@pytest.mark.slow
def test_the_compiler_makes_the_same_of_it() -> None:
    """In processes of their own, since one does not compile a kernel again."""
    made = []
    for target in HOPPERS:
        script = f"import json; from {__name__} import *; print(json.dumps(ptx_hashes({target!r})))"
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        made.append(json.loads(done.stdout.splitlines()[-1]))
    assert len(made[0]) == 5, made[0].keys()  # with the one that merges splits
    assert made[1:] == made[:1] * (len(made) - 1)
