"""JOINT. What an engine would be on a GPU that is not here: every program compiled for it.

Works from config.json alone. Knows how to ask the engine's own planning and compiling, and how to
read what comes out; decides nothing itself. The compiler is told by an environment variable where
to write: in a process of its own (`plan_process`) nobody else sees that.
"""

import functools
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from jaxinfer.config.engine_config import EngineConfig, engine_config
from jaxinfer.config.geometry import (
    NO_DRAFTS,
    Device,
    Geometry,
    cache_bytes,
)
from jaxinfer.config.memory_needs import loop_state_bytes
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.config.targets import GpuTarget, gpu_target
from jaxinfer.errors import CheckpointError, UnsupportedError
from jaxinfer.jobs.hlo_text import Traffic, count_traffic, parse_program
from jaxinfer.jobs.kernel_report import dumped_kernels, read_kernels
from jaxinfer.jobs.plan_records import (
    RESERVED_BYTES,
    DraftPlan,
    KernelPlan,
    ProgramPlan,
    TargetPlan,
    decode_loads,
)
from jaxinfer.speculation.break_even import break_even_acceptance

_WITHOUT_ARGUMENTS = "init_step"
_KERNEL_LINE = re.compile(r"^( *)\d+: (k\w+)")

# What happens while a plan is made: (programs done, programs in all, name of the next).
Report = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedEngine:
    """What would run: the model, what was decided for it, and its parameters' shapes.

    draft: the model that drafts, None without one. fallbacks: ops without a kernel, and why.
    """

    config: ModelConfig
    draft: ModelConfig | None = None
    geometry: Geometry
    params: Any
    weights: str
    fallbacks: Mapping[str, str]


def plan_target(
    model: str | Path,
    target_name: str,
    *,
    compile_programs: bool = True,
    report: Report = lambda done, total, name: None,
    **engine_options: Any,
) -> TargetPlan:
    """Plans the engine for the target and compiles every program of it.

    Args:
        model: config.json or a folder with one (weights need not be there), a GGUF file, or a demo
            name.
        target_name: a name of `config/targets.py`.
        compile_programs: without it, only what arithmetic gives: memory and the decode floor.
        report: is told before each program.
        engine_options: as for `LLM`.

    Raises:
        ConfigError, CheckpointError, CapacityError: as an engine's start.
        UnsupportedError: the aot extra is not installed; a quantized checkpoint without its files.
    """
    target, ask = gpu_target(target_name), engine_config(**engine_options)
    if compile_programs:
        _refuse_without_compiler(target)
    engine = decide_engine(model, ask, target)
    programs, kernels = (), ()
    if compile_programs:
        programs, kernels = _compile(engine, target, report)
    return _plan(str(model), engine, target, programs, kernels)


def _device(target: GpuTarget) -> Device:
    return Device(platform="gpu", free_bytes=target.memory_bytes - RESERVED_BYTES)


def _refuse_without_compiler(target: GpuTarget) -> None:
    from jaxinfer.runner import target as target_module

    if reason := target_module.missing_compiler():
        raise target_module.missing_compiler_error(target, reason)


def decide_engine(model: str | Path, ask: EngineConfig, target: GpuTarget) -> PlannedEngine:
    from jaxinfer.engine.build import decide_geometry, float_room, kernels_of_weights
    from jaxinfer.engine.kernels import kernel_fallbacks
    from jaxinfer.engine.parameter_shapes import parameter_shapes
    from pallas_kernels.dispatch import Platform

    capability = target.compute_capability
    platform = Platform(kind="gpu", compute_capability=capability, is_absent=True)
    room = float_room(ask, _device(target), platform)
    config, architecture, storage = _storage(model, ask, room)
    draft = _draft(model, ask)
    geometry = decide_geometry(
        ask,
        config,
        _device(target),
        storage.share,
        platform=platform,
        drafts=draft.needs if draft else NO_DRAFTS,
    )
    params = parameter_shapes(config, architecture, storage, geometry, draft)
    params = kernels_of_weights(params, ask, geometry, platform)
    kept = f"{len(storage.packed)} matrices packed" if storage.packed else geometry.weight_dtype
    drafting = draft.config if draft else None
    return PlannedEngine(
        config=config,
        draft=drafting,
        geometry=geometry,
        params=params,
        weights=kept,
        fallbacks=kernel_fallbacks(geometry, params, ask, (config, drafting), platform),
    )


def _draft(model: str | Path, ask: EngineConfig) -> Any:
    """The model that drafts, from its config too; None without one."""
    from jaxinfer.engine.draft_model import draft_model

    wanted = ask.speculative_config
    if wanted is None or not wanted.has_model:
        return None
    drafting = replace(ask, quantization=wanted.quantization, activations="float")
    return draft_model(wanted, *_storage(wanted.model or model, drafting, None))


def _storage(model: str | Path, ask: EngineConfig, room: Any) -> tuple[Any, Any, Any]:
    """Config, architecture and how its parameters are kept, with or without the weights' files.

    room: what they may take as floats, as for `decide_storage`.
    """
    from jaxinfer.checkpoint.checkpoint import open_checkpoint
    from jaxinfer.checkpoint.storage import decide_storage, storage_without_weights
    from jaxinfer.config.quantization import quantization_from

    folder = _folder_without_weights(Path(model).expanduser())
    asked: dict[str, Any] = {
        "weights": ask.weights,
        "quantization": quantization_from(ask.quantization),
        "platform": "gpu",
        "float_room": room,
    }
    if folder is None:
        checkpoint = open_checkpoint(model)
        storage = decide_storage(checkpoint, activations=ask.activations, **asked)
        return checkpoint.config, checkpoint.architecture, storage
    config, architecture = _float_config(folder, ask)
    storage = storage_without_weights(config, architecture, **asked)
    return config, architecture, storage


def _folder_without_weights(path: Path) -> Path | None:
    """The folder of a config.json that has no weights beside it, else None."""
    folder = path.parent if path.name == "config.json" else path
    if not (folder / "config.json").is_file():
        return None
    return None if any(folder.glob("*.safetensors")) else folder


def _float_config(folder: Path, ask: EngineConfig) -> tuple[Any, Any]:
    from jaxinfer.checkpoint.hf_config import read_hf_config

    config, architecture, raw = read_hf_config(folder)
    for key in ("quantization_config", "compression_config"):
        if raw.get(key):
            raise UnsupportedError(
                f"{folder / 'config.json'} has {key}: how a quantized checkpoint is stored is read "
                "from its files; put its weights beside it, or plan the float model with "
                "quantization set"
            )
    if ask.activations == "checkpoint":
        raise CheckpointError(
            f"activations='checkpoint': {folder} holds no weights that would say how inputs are "
            "rounded; leave it out, or put the weights there"
        )
    return config, architecture


def _compile(
    engine: PlannedEngine, target: GpuTarget, report: Report
) -> tuple[tuple[ProgramPlan, ...], tuple[KernelPlan, ...]]:
    from jaxinfer.runner.programs import program_sources
    from jaxinfer.runner.target import place_on_target

    sources = program_sources(engine.params, engine.config, engine.geometry, engine.draft)
    del sources[_WITHOUT_ARGUMENTS]  # it has no place to be compiled for
    with dumped_kernels() as dumps, ThreadPoolExecutor(max_workers=1) as compiler:
        futures = []
        for number, (name, source) in enumerate(sources.items()):
            start = time.perf_counter()
            placed = replace(source, arguments=place_on_target(target, source.arguments))
            lowered = placed.lower()  # this one, while another compiles the last
            seconds = time.perf_counter() - start
            told = functools.partial(report, number, len(sources), name)
            futures.append(compiler.submit(_program_plan, name, lowered, seconds, engine, told))
        programs = tuple(future.result() for future in futures)
        kernels = set(read_kernels(dumps))
    report(len(sources), len(sources), "")
    return programs, tuple(sorted(kernels, key=lambda one: (one.name, one.registers)))


def _program_plan(
    name: str, lowered: Any, seconds: float, engine: PlannedEngine, tell: Callable[[], None]
) -> ProgramPlan:
    """seconds: that lowering took."""
    tell()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        executable = lowered.compile(compiler_options={"xla_dump_to": folder})
        seconds += time.perf_counter() - start
        thunks = sorted(Path(folder).glob("*thunk_sequence*"))  # the last with command buffers
        kernels, recorded = count_kernels(thunks[-1].read_text("utf-8") if thunks else "")
    memory, program = executable.memory_analysis(), parse_program(executable.as_text())
    shapes = page_shapes(engine)
    traffic = count_traffic(program, lambda array: array.dims in shapes)
    return ProgramPlan(
        name=name,
        compile_seconds=seconds,
        temporary_bytes=memory.temp_size_in_bytes,
        aliased_bytes=memory.alias_size_in_bytes,
        kernels=kernels,
        recorded_kernels=recorded,
        kernels_a_layer=program.kernels_of_layer(1),
        moved_bytes=traffic.num_bytes,
        page_reads=token_bytes_by_layer(traffic),
    )


def count_kernels(thunks: str) -> tuple[int, int]:
    """Launches of one run, and those of them inside command buffers; branches are left out.

    Example, indented as the compiler does: a command buffer with two kernels, then a condition
    whose branch has one, then a kernel: 3 launches, 2 of them recorded.
    """
    kernels = recorded = 0
    open_at, is_recorded = None, False  # indentation of the block that the line may lie in
    for line in thunks.splitlines():
        if not (found := _KERNEL_LINE.match(line)):
            continue
        depth, kind = len(found[1]), found[2]
        if open_at is not None and depth > open_at:
            kernels, recorded = kernels + is_recorded, recorded + is_recorded
            continue
        open_at = depth if kind in ("kCommandBuffer", "kConditional", "kWhile") else None
        is_recorded = kind == "kCommandBuffer"
        kernels += open_at is None
    return kernels, recorded


def page_shapes(engine: PlannedEngine) -> set[tuple[int, ...]]:
    """Of the arrays that are read through the page table: codes, and scales of tokens."""
    import jax

    from jaxinfer.cache import abstract_cache

    cache = abstract_cache(engine.config, engine.geometry, engine.draft)
    return {leaf.shape for leaf in jax.tree.leaves(cache) if len(leaf.shape) >= 3}


def token_bytes_by_layer(traffic: Traffic) -> dict[str, int]:
    """Bytes that a program reads of each cached token, in the page arrays of each layer.

    Example: bfloat16 pages [P, 8, S, 128] of keys and of values: 8 · 128 · 2 of each, 4096.
    """
    found: dict[str, int] = {}
    for layer, array in traffic.page_reads:
        tokens = array.dims[0] * array.dims[2]  # [P, K, S, ...]
        found[str(layer)] = found.get(str(layer), 0) + array.num_bytes // tokens
    return found


def _plan(
    model: str,
    engine: PlannedEngine,
    target: GpuTarget,
    programs: tuple[ProgramPlan, ...],
    kernels: tuple[KernelPlan, ...],
) -> TargetPlan:
    from jaxinfer.engine.parameter_shapes import num_bytes, read_bytes

    config, geometry = engine.config, engine.geometry
    read, drafting = read_bytes(engine.params, config, engine.draft, geometry)
    decode = [one for one in programs if one.name.startswith("decode_step")]
    return TargetPlan(
        model=model,
        target=target.name,
        description=target.description,
        memory_bytes=target.memory_bytes,
        bandwidth_bytes_per_s=target.bandwidth_bytes_per_s,
        settings={k: v for k, v in asdict(geometry).items() if not k.endswith("layer_groups")},
        weights=engine.weights,
        weights_bytes=num_bytes(engine.params),
        read_weights_bytes=read,
        cache_bytes=cache_bytes(config, geometry, engine.draft),
        cached_tokens=geometry.cached_tokens,
        state_bytes=loop_state_bytes(geometry.num_slots, config.vocab_size),
        temporary_bytes=max((one.temporary_bytes for one in programs), default=None),
        decode=decode_loads(
            config, geometry, read, target.bandwidth_bytes_per_s, decode[-1] if decode else None
        ),
        programs=programs,
        kernels=kernels,
        drafts=_draft_plan(programs, read, drafting, geometry) if geometry.draft_tokens else None,
        fallbacks=engine.fallbacks,
    )


def _draft_plan(
    programs: tuple[ProgramPlan, ...], read: int, drafting: int, geometry: Geometry
) -> DraftPlan:
    """From what the compiled programs of most rows move; uncompiled, from the weights alone."""
    moved = {one.name.partition(" ")[0]: one.moved_bytes for one in programs}  # the widest is last
    decode, verify = moved.get("decode_step") or read, moved.get("verify_step") or read
    draft = moved.get("draft_step") or drafting
    return DraftPlan(
        num_drafts=geometry.draft_tokens,
        decode_bytes=decode,
        draft_bytes=draft,
        verify_bytes=verify,
        break_even_acceptance=break_even_acceptance(
            decode_cost=decode,
            draft_cost=draft,
            verify_cost=verify,
            num_drafts=geometry.draft_tokens,
        ),
    )
