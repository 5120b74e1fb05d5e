"""JOINT. The only place that assembles an engine; "auto" settings are resolved and logged here."""

import logging
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import jax

from jaxinfer.checkpoint.checkpoint import Checkpoint, open_checkpoint
from jaxinfer.checkpoint.load import load_params
from jaxinfer.checkpoint.storage import FloatRoom, Storage, decide_storage
from jaxinfer.config.engine_config import EngineConfig
from jaxinfer.config.geometry import (
    NO_DRAFTS,
    NOTHING_PACKED,
    Device,
    DraftNeeds,
    Geometry,
    PackedShare,
    cache_bytes,
    plan_geometry,
)
from jaxinfer.config.memory_needs import loop_state_bytes
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.config.quantization import quantization_from
from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.engine.arguments import default_params
from jaxinfer.engine.checkpoint_text import end_ids, tokenizer_of
from jaxinfer.engine.device import find_device
from jaxinfer.engine.draft_model import DraftModel, by_leaf, open_draft
from jaxinfer.engine.engine import Engine
from jaxinfer.engine.intake import Intake
from jaxinfer.engine.kernels import decide_kernels, kernel_fallbacks, kernels_of_weights
from jaxinfer.engine.kv_scales import ONES, LayerScales, fixed_kv_scales
from jaxinfer.engine.memory_plan import MemoryPlan
from jaxinfer.engine.metrics import EngineMetrics
from jaxinfer.engine.parameter_shapes import num_bytes, parameter_shapes, read_bytes
from jaxinfer.engine.trace import open_timeline
from jaxinfer.errors import CapacityError, CheckpointError
from jaxinfer.runner.compile import CompileLog, counted_compiles, use_compilation_cache
from jaxinfer.runner.programs import Programs, compile_programs
from jaxinfer.runner.runner import Runner
from jaxinfer.speculation.control import ModelDrafter, NgramDrafter
from jaxinfer.text.tokenizer import Tokenizer, tokenizer_from_folder
from pallas_kernels.dispatch import Platform, current_platform

_log = logging.getLogger("jaxinfer")

# A simulated kernel is at most four threads that wait for each other, beside the one that calls.
SIMULATING_CORES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """An engine and what was decided and measured on the way."""

    engine: Engine
    checkpoint: Checkpoint
    geometry: Geometry
    memory: MemoryPlan
    default_params: SamplingParams


def build_engine(
    model: str | Path,
    ask: EngineConfig,
    *,
    tokenizer: str | Path | Tokenizer | None = None,
    compiles: CompileLog | None = None,
    show_progress: bool = True,
) -> Built:
    """Opens a checkpoint, plans, compiles, loads.

    Args:
        model: folder, GGUF file, hub id or demo name.
        ask: the settings.
        tokenizer: another folder's or an object, in place of the checkpoint's own.
        compiles: counts the compiles; by default a new log that listens only while building.
        show_progress: bars for download and load.

    Raises:
        JaxInferError: anything that is wrong with the checkpoint, the settings or the memory; what
            was placed on the device by then is freed.
    """
    use_compilation_cache(_cache_folder(ask.compilation_cache_dir))
    checkpoint = open_checkpoint(model, show_progress=show_progress)
    config, device = checkpoint.config, find_device()
    storage = storage_for(ask, checkpoint, device)  # all tensors are matched before compiling
    text = _tokenizer(checkpoint, tokenizer)
    draft = open_draft(ask, checkpoint, text, device.platform, show_progress=show_progress)
    drafting = draft.config if draft else None
    geometry = _geometry(ask, checkpoint, device, storage, draft)
    defaults = default_params(checkpoint.generation_config, wanted=ask.use_generation_config)
    shapes = parameter_shapes(config, checkpoint.architecture, storage, geometry, draft)
    shapes = kernels_of_weights(shapes, ask, geometry)
    _report_kernels(ask, kernel_fallbacks(geometry, shapes, ask, (config, drafting)))
    _check_room(ask, num_bytes(shapes), cache_bytes(config, geometry, drafting), device)
    with counted_compiles(compiles or CompileLog()):
        programs = compile_programs(shapes, config, geometry, drafting, show_progress=show_progress)
    memory = _memory_plan(ask, shapes, programs, (config, drafting), geometry, device)
    _report(geometry, storage, memory)
    intake = _intake(ask, checkpoint, text, geometry)
    timeline = open_timeline(ask.trace)
    with _closed_on_error(timeline):
        runner, metrics = _load(ask, checkpoint, storage, draft, programs, geometry, show_progress)
    engine = Engine(
        ask=ask,
        intake=intake,
        runner=runner,
        drafter=_drafter(ask, geometry, (config, drafting), shapes),
        metrics=metrics,
        timeline=timeline,
    )
    parts = {"checkpoint": checkpoint, "geometry": geometry, "memory": memory}
    return Built(engine=engine, default_params=defaults, **parts)


def _geometry(
    ask: EngineConfig,
    checkpoint: Checkpoint,
    device: Device,
    storage: Storage,
    draft: DraftModel | None,
) -> Geometry:
    needs = draft.needs if draft else NO_DRAFTS
    geometry = decide_geometry(ask, checkpoint.config, device, storage.share, drafts=needs)
    return replace(geometry, kv_scales=_kv_scales(geometry, checkpoint, draft))


def _kv_scales(
    geometry: Geometry, checkpoint: Checkpoint, draft: DraftModel | None
) -> tuple[LayerScales, ...]:
    """Of the model's layers, then of those that a draft model has pages of its own for."""
    has_pages = draft is not None and draft.needs.model is not None
    both = (checkpoint, draft.checkpoint) if draft is not None and has_pages else (checkpoint,)
    parts = []
    for one in both:
        assert one is not None, "what is only planned is not built"
        found = one.quant_format.kv_scales if one.quant_format else {}
        scales = fixed_kv_scales(geometry.kv_dtype, one.config, found)
        parts.append((scales, one.config.num_layers))
    if not any(scales for scales, _ in parts):
        return ()
    return tuple(layer for scales, count in parts for layer in scales or ONES * count)


def _intake(
    ask: EngineConfig, checkpoint: Checkpoint, tokenizer: Tokenizer | None, geometry: Geometry
) -> Intake:
    return Intake(
        vocab_size=checkpoint.config.vocab_size,
        max_model_len=geometry.max_model_len,
        tokenizer=tokenizer,
        eos_token_ids=end_ids(checkpoint, tokenizer),
        seed=_seed(ask),
        max_logprobs=ask.max_logprobs,
    )


def _seed(ask: EngineConfig) -> int:
    seed = secrets.randbits(63) if ask.seed is None else ask.seed
    _log.info("seed = %d", seed)
    return seed


def _drafter(
    ask: EngineConfig,
    geometry: Geometry,
    models: tuple[ModelConfig, ModelConfig | None],
    shapes: Any,
) -> NgramDrafter | ModelDrafter | None:
    if ask.speculative_config is None or not geometry.verify_widths:
        return None
    widest, (config, draft) = geometry.verify_widths[-1], models
    if draft is None:
        return NgramDrafter(ask.speculative_config, widest)
    decoding, drafting = read_bytes(shapes, config, draft, geometry)
    cost = drafting / decoding
    drafter = ModelDrafter(
        ask.speculative_config, widest, max_position=draft.longest_context, cost=cost
    )
    if ask.speculative_config.adaptive and not drafter.can_pay:
        _log.warning(
            "speculative_config: drafting a token reads %.0f %% of what a decode step reads here, "
            "which cannot pay: nothing is drafted; adaptive=False drafts all the same",
            100 * cost,
        )
    return drafter


@contextmanager
def _closed_on_error(timeline: Any) -> Iterator[None]:
    try:
        yield
    except BaseException:
        timeline.close()
        raise


def _report(geometry: Geometry, storage: Storage, memory: MemoryPlan) -> None:
    _log.info("weights = %r: %s", storage.form, storage.reason)
    by_layer = ("layer_groups", "draft_layer_groups", "kv_scales")  # too long to be shown
    for setting in fields(geometry):
        if setting.name not in by_layer:
            _log.info("%s = %r", setting.name, getattr(geometry, setting.name))
    for line in memory.lines():
        _log.info(line)


def _report_kernels(ask: EngineConfig, reasons: Mapping[str, str]) -> None:
    for op, reason in reasons.items():
        _log.info("no kernel for %s: %s; XLA's form runs", op, reason)
    cores = os.cpu_count() or 1
    if ask.simulates and cores < SIMULATING_CORES:
        _log.warning(
            "simulated kernels wait for each other on up to %d threads of XLA, and this machine "
            "has %d: if nothing comes, set NPROC=8 in the environment before Python starts",
            SIMULATING_CORES,
            cores,
        )


def _load(
    ask: EngineConfig,
    checkpoint: Checkpoint,
    storage: Storage,
    draft: DraftModel | None,
    programs: Programs,
    geometry: Geometry,
    show_progress: bool,
) -> tuple[Runner, EngineMetrics]:
    start = time.perf_counter()
    params = load_params(
        checkpoint,
        weight_dtype=geometry.weight_dtype,
        keep_packed=storage.form == "packed",
        round_inputs=storage.round_inputs,
        sources=storage.sources,
        show_progress=show_progress,
    )
    try:
        if draft is not None:
            leaves = by_leaf(checkpoint.architecture, checkpoint.config, params)
            dtype = geometry.weight_dtype
            params["draft"] = draft.load(leaves, dtype, show_progress=show_progress)
        seconds = time.perf_counter() - start
        metrics = EngineMetrics(model_load_seconds=seconds, num_programs=len(programs.named()))
        return Runner(kernels_of_weights(params, ask, geometry), programs, geometry), metrics
    except BaseException:
        for leaf in jax.tree.leaves(params):
            leaf.delete()  # twice is harmless
        raise


def storage_for(ask: EngineConfig, checkpoint: Checkpoint, device: Device) -> Storage:
    """How the parameters are kept on `device`, this process's first.

    Raises:
        CheckpointError, UnsupportedError: as `decide_storage`.
    """
    return decide_storage(
        checkpoint,
        weights=ask.weights,
        activations=ask.activations,
        quantization=quantization_from(ask.quantization),
        platform="gpu" if ask.asked_of("quant_matmul") == "simulated" else device.platform,
        float_room=float_room(ask, device, current_platform()),
    )


def float_room(ask: EngineConfig, device: Device, platform: Platform) -> FloatRoom | None:
    """What "auto" may let weights take as floats, on a GPU: half of the engine's memory, the other
    half is for pages. None where it is asked by name for a kernel of packed weights, for dtypes or
    for pages."""
    is_auto = (ask.asked_of("quant_matmul"), ask.num_gpu_blocks_override) == ("auto", None)
    if platform.kind != "gpu" or not is_auto or ask.dtype == "float32":
        return None
    usable = int(device.free_bytes * ask.gpu_memory_utilization)
    return FloatRoom(platform=platform, max_bytes=usable // 2)


def decide_geometry(
    ask: EngineConfig,
    model: ModelConfig,
    device: Device,
    packed: PackedShare = NOTHING_PACKED,
    platform: Platform | None = None,
    *,
    drafts: DraftNeeds = NO_DRAFTS,
) -> Geometry:
    """The geometry with every "auto" resolved, kernels included.

    Args:
        drafts: what drafting needs beside the model.
        platform: where the programs will run; None for this process's first device.

    Raises:
        ConfigError, CapacityError: as `plan_geometry`.
    """
    planned = plan_geometry(ask, model, device, packed, drafts)
    return decide_kernels(planned, ask, model, platform, draft=drafts.model)


def _cache_folder(setting: str | None) -> Path | None:
    if setting != "auto":
        return Path(setting) if setting else None
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "jaxinfer" / "programs"


def _tokenizer(checkpoint: Checkpoint, other: str | Path | Tokenizer | None) -> Tokenizer | None:
    if isinstance(other, Tokenizer):
        return other
    if other is not None:
        found = tokenizer_from_folder(Path(other))
        if found is None:
            raise CheckpointError(
                f"tokenizer={str(other)!r}: there is no tokenizer.json in such a folder; name a "
                "folder that has one, or pass a Tokenizer"
            )
        return found
    return tokenizer_of(checkpoint)


def _what_to_lower(ask: EngineConfig) -> str:
    settings = "max_num_seqs, max_model_len, gpu_memory_utilization or num_gpu_blocks_override"
    return settings + (", or leave out speculative_config" if ask.speculative_config else "")


def _check_room(ask: EngineConfig, weights: int, cache: int, device: Device) -> None:
    """What is known before compiling is refused before it; temporaries are checked afterwards."""
    if weights + cache > device.free_bytes:
        raise CapacityError(
            f"the engine needs {weights + cache:,} bytes (weights {weights:,}, KV cache "
            f"{cache:,}), {device.free_bytes:,} are free; lower {_what_to_lower(ask)}"
        )


def _memory_plan(
    ask: EngineConfig,
    shapes: Any,
    programs: Programs,
    models: tuple[ModelConfig, ModelConfig | None],
    geometry: Geometry,
    device: Device,
) -> MemoryPlan:
    weights = num_bytes(shapes)
    named: Mapping[str, Any] = programs.named()
    config, draft = models
    plan = MemoryPlan(
        weights_bytes=weights,
        kv_cache_bytes=cache_bytes(config, geometry, draft),
        state_bytes=loop_state_bytes(geometry.num_slots, config.vocab_size),
        temporary_bytes=max(p.memory_analysis().temp_size_in_bytes for p in named.values()),
        free_bytes=device.free_bytes,
        num_programs=len(named),
        num_slots=geometry.num_slots,
        max_model_len=geometry.max_model_len,
        cached_tokens=geometry.cached_tokens,
    )
    if plan.needed_bytes > device.free_bytes:
        raise CapacityError(
            f"the engine needs {plan.needed_bytes:,} bytes ({'; '.join(plan.lines())}), "
            f"{device.free_bytes:,} are free; lower {_what_to_lower(ask)}"
        )
    return plan
