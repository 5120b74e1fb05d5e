"""Compiles for a GPU that is not there, and reads what its assembler said of each kernel.

`needs_aot` marks a test: it is skipped with a reason where the aot extra is missing.
"""

import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jaxinfer.config.targets import gpu_target
from jaxinfer.runner.target import missing_compiler, place_on_target

_DUMP = "MOSAIC_GPU_DUMP_TO"
_KNOWN_REPORTS: dict[str, "KernelReport"] = {}  # by the hash of the kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelReport:
    """What the assembler said of one kernel; bytes a block."""

    name: str
    registers: int
    spill_bytes: int
    shared_bytes: int


def needs_aot(test: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a test as `aot` and skips it where the extra is missing."""
    reason = missing_compiler() or ""
    return pytest.mark.aot(pytest.mark.skipif(bool(reason), reason=reason)(test))


def on_target(name: str, shapes: Any) -> Any:
    """The pytree of shapes (or arrays) placed on the named GPU."""
    return place_on_target(gpu_target(name), shapes)


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
