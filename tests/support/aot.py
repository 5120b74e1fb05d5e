"""Compiles for a GPU that is not there, and reads what its assembler said of each kernel.

`needs_aot` marks a test: it is skipped with a reason where the aot extra is missing.
"""

import re
from collections.abc import Callable
from typing import Any

import jax
import pytest

from jaxinfer.config.targets import gpu_target
from jaxinfer.jobs.kernel_report import dumped_kernels, read_kernels
from jaxinfer.jobs.plan_records import KernelPlan
from jaxinfer.runner.target import missing_compiler, place_on_target

# GPUs that run the same kernels, byte for byte: all that a kernel's compiler is told of a GPU is
# its compute capability (tests/pallas_kernels/test_hopper_targets.py compares what comes out). So
# each kernel is compiled for the first, and must fit into the shared memory of all.
HOPPERS = ("h200", "h100")
MOST_BYTES = min(gpu_target(name).shared_memory_bytes for name in HOPPERS)
_KNOWN_REPORTS: dict[str, KernelPlan] = {}  # by the hash of the kernel


def needs_aot(test: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a test as `aot` and skips it where the extra is missing."""
    reason = missing_compiler() or ""
    return pytest.mark.aot(pytest.mark.skipif(bool(reason), reason=reason)(test))


def on_target(name: str, shapes: Any) -> Any:
    """The pytree of shapes (or arrays) placed on the named GPU."""
    return place_on_target(gpu_target(name), shapes)


def compile_kernels(lowered: Any) -> tuple[Any, list[KernelPlan]]:
    """The executable of a lowered program, and a report of each different kernel in it.

    A kernel that this process has compiled before is not compiled again: its report is kept.
    """
    with dumped_kernels() as folder:
        compiled = lowered.compile()
        fresh = read_kernels(folder)
    calls = _calls(compiled.as_text()) or _calls(lowered.as_text())
    unknown = {key: name for key, name in calls.items() if key not in _KNOWN_REPORTS}
    assert len(unknown) == len(fresh), (len(unknown), len(fresh))
    for name in sorted(set(unknown.values())):  # of one name, in the order of their calls
        keys = [key for key, called in unknown.items() if called == name]
        found = [one for one in fresh if name in ("", one.name)]
        _KNOWN_REPORTS.update(zip(keys, found, strict=True))
    return compiled, [_KNOWN_REPORTS[key] for key in calls]


def _calls(text: str) -> dict[str, str]:
    """The hashes of the kernels in a program, each with the kernel's name, "" where it is not said:
    kernels are not compiled in the order in which they are called."""
    calls: dict[str, str] = {}
    for line in text.splitlines():
        if found := re.search(r'kernel_hash = "((?:[^"\\]|\\.)*)"', line):
            name = re.search(r'op_name="(?:[^"]*/)?(\w+)/mpmd_map"', line)
            calls.setdefault(found.group(1), name.group(1) if name else "")
    return calls


def compile_kernel(function: Callable[..., Any], *shapes: Any) -> KernelPlan:
    """The report of the only kernel of a function of such arrays, for Hopper GPUs."""
    _, reports = compile_kernels(jax.jit(function).lower(*on_target(HOPPERS[0], shapes)))
    assert len(reports) == 1
    return reports[0]


def check_kernels(rows: dict[str, KernelPlan], capsys: pytest.CaptureFixture[str]) -> None:
    """Prints the table; no kernel may spill, and each must fit the shared memory of every Hopper
    GPU."""
    with capsys.disabled():
        print(f"\n{_table(rows)}")
    assert rows
    assert not {label: one for label, one in rows.items() if one.spill_bytes}
    assert not {label: one for label, one in rows.items() if one.shared_bytes > MOST_BYTES}


def _table(rows: dict[str, KernelPlan]) -> str:
    """One line a kernel."""
    title = f"for {' and '.join(HOPPERS)} alike"
    width = max(map(len, (title, *rows)))
    lines = [f"{title:{width}} {'registers':>9} {'spills':>6} {'shared memory':>13}"]
    for label, one in rows.items():
        sizes = f"{one.registers:>9} {one.spill_bytes:>6} {one.shared_bytes:>13,}"
        lines.append(f"{label:{width}} {sizes}")
    return "\n".join(lines)
