"""JOINT. What an engine would be on a GPU that is not here: every program compiled for it.

Works from config.json alone. Knows how to ask the engine's own planning and compiling, and how to
read what comes out; decides nothing itself.
"""

import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxinfer.config.engine_config import engine_config
from jaxinfer.config.geometry import Device, Geometry, cache_bytes, kv_token_bytes
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.config.targets import GpuTarget, gpu_target

# Of the device memory, what the driver and the runtime keep for themselves.
_RESERVED_BYTES = 1 << 30
_DUMP_FOLDER = "MOSAIC_GPU_DUMP_TO"  # read by the compiler, for as long as it runs

_WITHOUT_PLACE = ("init_step", "seat_step", "copy_step", "swap_out_step", "swap_in_step")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramPlan:
    """One program as compiled for the target.

    kernels_a_layer: launches in the second layer (the first may differ); 0 without layers.
    """

    name: str
    temporary_bytes: int
    aliased_bytes: int
    kernels_a_layer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPlan:
    """One kernel that was written for the GPU: what its assembler said, for one block."""

    name: str
    registers: int
    spill_bytes: int
    shared_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetPlan:
    """An engine on the target. spare_bytes: below 0, what does not fit."""

    target: GpuTarget
    geometry: Geometry
    weights_bytes: int
    cache_bytes: int
    temporary_bytes: int
    compile_seconds: float
    programs: tuple[ProgramPlan, ...]
    kernels: tuple[KernelPlan, ...]

    @property
    def spare_bytes(self) -> int:
        needed = self.weights_bytes + self.cache_bytes + self.temporary_bytes
        return self.target.memory_bytes - _RESERVED_BYTES - needed


def plan_target(folder: Path, target_name: str, **engine_options: Any) -> TargetPlan:
    """Plans the engine for the target and compiles every program of it.

    Args:
        folder: with a config.json; weights need not be there.
        target_name: a name of `config/targets.py`.
        engine_options: as for `LLM`.

    Raises:
        ConfigError, CheckpointError, CapacityError: as an engine's start.
        UnsupportedError: the aot extra is not installed.
    """
    from jaxinfer.checkpoint.hf_config import read_hf_config
    from jaxinfer.checkpoint.load import abstract_params
    from jaxinfer.runner.programs import compile_programs
    from jaxinfer.runner.target import place_on_target

    target = gpu_target(target_name)
    config, architecture, _ = read_hf_config(folder)
    geometry = target_geometry(config, target, **engine_options)
    params = abstract_params(config, architecture, geometry.weight_dtype)
    start = time.perf_counter()
    with _dumped_kernels() as dumps:
        compiled = compile_programs(place_on_target(target, params), config, geometry)
        kernels = tuple(_kernel_plan(path) for path in sorted(dumps.glob("*.ptxas")))
    # Only what takes parameters has a place on the target; the chores beside it are tiny.
    steps = {name: one for name, one in compiled.named().items() if name not in _WITHOUT_PLACE}
    programs = tuple(_program_plan(name, one) for name, one in steps.items())
    return TargetPlan(
        target=target,
        geometry=geometry,
        weights_bytes=_num_bytes(params),
        cache_bytes=cache_bytes(config, geometry),
        temporary_bytes=max(one.temporary_bytes for one in programs),
        compile_seconds=time.perf_counter() - start,
        programs=programs,
        kernels=kernels,
    )


def target_geometry(config: ModelConfig, target: GpuTarget, **engine_options: Any) -> Geometry:
    """What an engine would decide on the target, its kernels included."""
    from jaxinfer.engine.build import decide_geometry
    from pallas_kernels.dispatch import Platform

    device = Device(platform="gpu", free_bytes=target.memory_bytes - _RESERVED_BYTES)
    platform = Platform(kind="gpu", compute_capability=target.compute_capability)
    return decide_geometry(engine_config(**engine_options), config, device, platform=platform)


def decode_floor_s(
    plan: TargetPlan, config: ModelConfig, num_rows: int, context_tokens: int
) -> float:
    """The least time of a decode step: what it must read once, at the memory's bandwidth.

    Args:
        num_rows: requests in the step.
        context_tokens: of each of them.
    """
    token = kv_token_bytes(config, plan.geometry.page_kinds) * config.num_layers
    live = num_rows * context_tokens * token
    return (plan.weights_bytes + live) / plan.target.bandwidth_bytes_per_s


@contextmanager
def _dumped_kernels() -> Iterator[Path]:
    """A folder into which the compiler writes what it says of each kernel."""
    before = os.environ.get(_DUMP_FOLDER)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[_DUMP_FOLDER] = folder
        try:
            yield Path(folder)
        finally:
            del os.environ[_DUMP_FOLDER]
            if before is not None:
                os.environ[_DUMP_FOLDER] = before


def _kernel_plan(path: Path) -> KernelPlan:
    said = path.read_text(encoding="utf-8")
    passes = path.with_suffix(".mlir-passes.log")
    with passes.open(encoding="utf-8", errors="replace") as lines:
        sizes = (re.search(r"dynamic_shared_memory_size %c(\d+)", line) for line in lines)
        shared = next((int(match.group(1)) for match in sizes if match), 0)
    name = re.findall(r"Compiling entry function '(\w+?)(?:_mosaic_gpu_kernel)?'", said)
    return KernelPlan(
        name=name[0],
        registers=int(re.findall(r"Used (\d+) registers", said)[0]),
        spill_bytes=sum(map(int, re.findall(r"(\d+) bytes spill", said))),
        shared_bytes=shared,
    )


def _program_plan(name: str, program: Any) -> ProgramPlan:
    memory, text = program.memory_analysis(), program.as_text()
    entry = text[text.find("\nENTRY ") :]
    lines = [line for line in entry.splitlines() if "/layer_1/" in line]
    return ProgramPlan(
        name=name,
        temporary_bytes=memory.temp_size_in_bytes,
        aliased_bytes=memory.alias_size_in_bytes,
        kernels_a_layer=sum(1 for line in lines if re.search(r" (fusion|custom-call)\(", line)),
    )


def _num_bytes(shapes: Any) -> int:
    import jax

    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
