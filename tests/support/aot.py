"""Compiles for a GPU that is not there, and reads what its assembler said of each kernel.

`needs_aot` marks a test: it is skipped with a reason where the aot extra is missing.
"""

import functools
import importlib.metadata
import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.experimental import topologies

from jaxinfer.config.targets import gpu_target, target_config

_DUMP = "MOSAIC_GPU_DUMP_TO"
_KNOWN_REPORTS: dict[str, "KernelReport"] = {}  # by the hash of the kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelReport:
    """What the assembler said of one kernel; bytes a block."""

    name: str
    registers: int
    spill_bytes: int
    shared_bytes: int


def missing_aot() -> str:
    """Why nothing can be compiled for a GPU here; empty where it can."""
    for package in ("jax-cuda12-plugin", "nvidia-cuda-nvcc-cu12", "nvidia-cuda-runtime-cu12"):
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return f"the aot extra is not installed ({package})"
        if package == "jax-cuda12-plugin" and version != jax.__version__:
            return f"jax-cuda12-plugin {version} is not jax's version {jax.__version__}"
    return ""


def needs_aot(test: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a test as `aot` and skips it where the extra is missing."""
    reason = missing_aot()
    return pytest.mark.aot(pytest.mark.skipif(bool(reason), reason=reason)(test))


@functools.cache
def target_sharding(name: str) -> jax.sharding.Sharding:
    """One device of the named GPU, for `ShapeDtypeStruct`s."""
    topology = topologies.get_topology_desc(
        platform="cuda",
        topology_name="",
        target_config=target_config(gpu_target(name)),
        topology="1x1x1",
    )
    mesh = topologies.make_mesh(topology, (1,), ("device",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())


def on_target(name: str, shapes: Any) -> Any:
    """The pytree of shapes (or arrays) placed on the named GPU."""
    here = target_sharding(name)
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here), shapes
    )


def compile_kernels(lowered: Any) -> tuple[Any, list[KernelReport]]:
    """The executable of a lowered program, and a report of each different kernel in it.

    A kernel that this process has compiled before is not compiled again: its report is kept.
    """
    found = re.findall(r'kernel_hash = "((?:[^"\\]|\\.)*)"', lowered.as_text())
    hashes = list(dict.fromkeys(found))
    with tempfile.TemporaryDirectory() as folder:
        os.environ[_DUMP] = folder
        try:
            compiled = lowered.compile()
        finally:
            del os.environ[_DUMP]
        fresh = [_report(path) for path in sorted(Path(folder).glob("*.ptxas"))]
    unknown = [one for one in hashes if one not in _KNOWN_REPORTS]
    assert len(unknown) == len(fresh), (len(unknown), len(fresh))
    _KNOWN_REPORTS.update(zip(unknown, fresh, strict=True))
    return compiled, [_KNOWN_REPORTS[one] for one in hashes]


def table(rows: dict[str, KernelReport]) -> str:
    """A text table, one line a kernel."""
    lines = [f"{'kernel':58} {'registers':>9} {'spills':>6} {'shared memory':>13}"]
    for label, one in rows.items():
        lines.append(f"{label:58} {one.registers:>9} {one.spill_bytes:>6} {one.shared_bytes:>13,}")
    return "\n".join(lines)


def _report(path: Path) -> KernelReport:
    said = path.read_text(encoding="utf-8")
    passes = path.with_suffix(".mlir-passes.log")
    with passes.open(encoding="utf-8", errors="replace") as lines:
        sizes = (re.search(r"dynamic_shared_memory_size %c(\d+)", line) for line in lines)
        shared = next(int(match.group(1)) for match in sizes if match)
    registers = re.findall(r"Used (\d+) registers", said)
    spills = re.findall(r"(\d+) bytes spill", said)
    name = re.findall(r"Compiling entry function '(\w+)'", said)
    return KernelReport(
        name=name[0],
        registers=int(registers[0]),
        spill_bytes=sum(map(int, spills)),
        shared_bytes=shared,
    )
