"""JOINT. One call compiled for a GPU that is not here: its kernels, what it moves and holds.

Reads what the assembler says of each kernel. Knows no engine: `plan` asks for whole programs.
"""

import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxinfer.config.targets import gpu_target
from jaxinfer.jobs.hlo_text import Array, count_traffic, parse_program
from jaxinfer.jobs.plan_records import KernelPlan

# jax calls every kernel that overwrites its arguments by the name of a function of its own.
_LOST_NAMES = {"new_body": "rotate_write"}
_DUMP_FOLDER = "MOSAIC_GPU_DUMP_TO"  # read by the compiler, for as long as it runs


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReport:
    """What a call is on the GPU. kernels: those written for it; num_launches: all of them, XLA's
    included. moved_bytes: read and written, operands that are pages aside. temporary_bytes: held
    beside the arguments."""

    kernels: tuple[KernelPlan, ...]
    num_launches: int
    moved_bytes: int
    temporary_bytes: int


def report_call(
    call: Callable[..., Any],
    *arguments: Any,
    target: str = "h200",
    is_pages: Callable[[Array], bool] = lambda array: False,
) -> CallReport:
    """The call with such arguments (arrays or shapes), compiled for the target.

    Raises:
        UnsupportedError: the aot extra is not installed. ConfigError: an unknown target.
    """
    from jaxinfer.runner.compile import ProgramSource, compile_program
    from jaxinfer.runner.target import place_on_target

    placed = place_on_target(gpu_target(target), arguments)
    with dumped_kernels() as folder:
        executable = compile_program(ProgramSource(function=call, arguments=placed))
        kernels = read_kernels(folder)
    program = parse_program(executable.as_text())
    traffic = count_traffic(program, is_pages)
    return CallReport(
        kernels=kernels,
        num_launches=program.num_launches,
        moved_bytes=traffic.num_bytes,
        temporary_bytes=executable.memory_analysis().temp_size_in_bytes,
    )


def time_call(call: Callable[..., Any], *arguments: Any, repeats: int = 20) -> float:
    """Milliseconds of the call with these arrays, on the device where they are.

    repeats: calls launched one after another, of whose time it is the mean; one before them is not
        counted.
    """
    import jax

    from jaxinfer.runner.compile import ProgramSource, compile_program

    executable = compile_program(ProgramSource(function=call, arguments=arguments))
    jax.block_until_ready(executable(*arguments))
    start = time.perf_counter()
    jax.block_until_ready([executable(*arguments) for _ in range(repeats)])
    return 1e3 * (time.perf_counter() - start) / repeats


@contextmanager
def dumped_kernels() -> Iterator[Path]:
    """A folder into which the compiler writes what it says of each kernel."""
    from jaxinfer.runner.compile import use_compilation_cache

    # What was compiled for a GPU that is not there cannot be read back, and would dump nothing.
    use_compilation_cache(None)
    before = os.environ.get(_DUMP_FOLDER)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[_DUMP_FOLDER] = folder
        try:
            yield Path(folder)
        finally:
            del os.environ[_DUMP_FOLDER]
            if before is not None:
                os.environ[_DUMP_FOLDER] = before


def read_kernels(folder: Path) -> tuple[KernelPlan, ...]:
    """What the compiler said of the kernels that it compiled, in its order; each once a process."""
    return tuple(_read_kernel(path) for path in sorted(folder.glob("*.ptxas"), key=_number))


def _number(path: Path) -> int:
    """Example: kernel_12.ptxas → 12."""
    return int(re.sub(r"\D", "", path.stem) or 0)


def _read_kernel(path: Path) -> KernelPlan:
    said = path.read_text(encoding="utf-8")
    passes = path.with_suffix(".mlir-passes.log")
    with passes.open(encoding="utf-8", errors="replace") as lines:
        sizes = (re.search(r"dynamic_shared_memory_size %c(\d+)", line) for line in lines)
        shared = next((int(match.group(1)) for match in sizes if match), 0)
    name: list[str] = re.findall(r"Compiling entry function '(\w+?)(?:_mosaic_gpu_kernel)?'", said)
    return KernelPlan(
        name=_LOST_NAMES.get(name[0], name[0]),
        registers=int(re.findall(r"Used (\d+) registers", said)[0]),
        spill_bytes=sum(map(int, re.findall(r"(\d+) bytes spill", said))),
        shared_bytes=shared,
    )
