"""JOINT. `jaxinfer info`: what a checkpoint holds and what would run, without loading weights.

Reads headers and config only; the plan is the one that the engine would make here and now.
"""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from jaxinfer.config.engine_config import engine_config
from jaxinfer.config.geometry import (
    NO_DRAFTS,
    Device,
    Geometry,
    cache_bytes,
    kv_token_bytes,
)
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.errors import CapacityError, CheckpointError, UnsupportedError

if TYPE_CHECKING:
    from jaxinfer.checkpoint.checkpoint import Checkpoint
    from jaxinfer.checkpoint.storage import Storage
    from jaxinfer.engine.draft_model import DraftModel

Section = dict[str, Any]
FORMAT_NAMES = {"hf": "Hugging Face folder", "gguf": "GGUF", "native": "native"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """checkpoint, model, plan: named facts. obstacle: why nothing would run here, else None."""

    checkpoint: Section
    model: Section
    plan: Section
    obstacle: str | None


def describe_model(model: str, **engine_options: Any) -> ModelInfo:
    """Facts about the checkpoint `model` and the plan for this device.

    Args:
        model: demo name, folder, GGUF file or hub id.
        engine_options: as for `LLM`; they change the plan.

    Raises:
        CheckpointError, UnsupportedError: the checkpoint cannot be read.
        ConfigError: an option that is unknown or does not fit the model.
    """
    ask = engine_config(**engine_options)
    from jaxinfer.checkpoint.checkpoint import open_checkpoint
    from jaxinfer.engine.build import decide_geometry, storage_for
    from jaxinfer.engine.checkpoint_text import tokenizer_of
    from jaxinfer.engine.device import find_device
    from jaxinfer.engine.draft_model import open_draft

    checkpoint = open_checkpoint(model)
    device, plan, obstacle = find_device(), {}, None
    try:
        storage = storage_for(ask, checkpoint, device)
        text = tokenizer_of(checkpoint) if ask.speculative_config else None
        draft = open_draft(ask, checkpoint, text, device.platform, show_progress=False)
        needs = draft.needs if draft else NO_DRAFTS
        geometry = decide_geometry(ask, checkpoint.config, device, storage.share, drafts=needs)
        plan = describe_plan(checkpoint.config, geometry, needs.model)
        plan |= describe_weights(checkpoint, storage, geometry, draft)
    except (CapacityError, CheckpointError, UnsupportedError) as error:
        obstacle = str(error)
    return ModelInfo(
        checkpoint=describe_checkpoint(checkpoint),
        model=describe_config(checkpoint.config),
        plan=describe_device(device) | plan,
        obstacle=obstacle,
    )


def describe_checkpoint(checkpoint: "Checkpoint") -> Section:
    return {
        "path": str(checkpoint.path),
        "format": FORMAT_NAMES[checkpoint.kind],
        "files": len(checkpoint.tensors.files),
        "file_bytes": checkpoint.file_bytes,
        "tensors": len(checkpoint.tensors.infos),
        "quantization": checkpoint.quantization,
        "parameters": checkpoint.num_parameters,
    }


def describe_config(config: ModelConfig) -> Section:
    windows = sorted(set(config.windows) - {0})
    return {
        "architecture": config.architecture,
        "context_tokens": config.longest_context,
        "layers": config.num_layers,
        "width": config.hidden_size,
        "query_heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "head_size": config.head_dim,
        "mlp_width": config.mlp_size,
        "experts": _describe_experts(config),
        "vocabulary": config.vocab_size,
        "tied_embeddings": config.tie_embeddings,
        "rope": ", ".join(
            f"theta {rope.theta:g}" + ("" if rope.scaling == "none" else f" {rope.scaling}")
            for rope in config.ropes
        ),
        "window_layers": sum(window > 0 for window in config.windows),
        "window_tokens": ", ".join(map(str, windows)) or None,
    }


def _describe_experts(config: ModelConfig) -> str | None:
    if config.experts is None:
        return None
    one = config.experts
    where = f"{sum(one.is_sparse)} of {config.num_layers} layers"
    return f"{one.num_chosen} of {one.num_experts}, width {one.mlp_size}, in {where}"


def describe_device(device: Device) -> Section:
    return {"platform": device.platform, "free_bytes": device.free_bytes}


def describe_plan(config: ModelConfig, geometry: Geometry, draft: ModelConfig | None) -> Section:
    """What an engine would be made of; the KV cache grows by kv_bytes_a_token.

    draft: a draft model with pages of its own.
    """
    models = (config,) if draft is None else (config, draft)
    token = sum(kv_token_bytes(one, geometry.page_kinds) * one.num_layers for one in models)
    return {
        "weight_dtype": geometry.weight_dtype,
        "activation_dtype": geometry.activation_dtype,
        "kv_dtype": geometry.kv_dtype,
        "attention": geometry.attention_kernel,
        "kv_bytes_a_token": token,
        "kv_cache_bytes": cache_bytes(config, geometry, draft),
        "max_model_len": geometry.max_model_len,
        "slots": geometry.num_slots,
        "page_tokens": geometry.page_tokens,
        "pages": ", ".join(
            f"{pages} ({f'window {window}' if window else 'full attention'})"
            for pages, window in zip(geometry.num_pages, geometry.group_windows, strict=True)
        ),
        "prefill_chunk_tokens": geometry.chunk_tokens,
        "prefill_rows": ", ".join(map(str, geometry.prefill_rows)),
        "decode_widths": ", ".join(map(str, geometry.decode_widths)),
    }


def describe_weights(
    checkpoint: "Checkpoint", storage: "Storage", geometry: Geometry, draft: "DraftModel | None"
) -> Section:
    """In which form the weights would run, why, and their bytes; those of what drafts are in it."""
    from jaxinfer.engine.parameter_shapes import num_bytes, parameter_shapes

    config, architecture = checkpoint.config, checkpoint.architecture
    shapes = parameter_shapes(config, architecture, storage, geometry, draft)
    return {
        "weights": f"{storage.form}: {storage.reason}",
        "packed_matrices": len(storage.packed),
        "weight_bytes": num_bytes(shapes),
    }


def print_info(info: ModelInfo, *, as_json: bool, console: Console) -> None:
    sections = {"checkpoint": info.checkpoint, "model": info.model, "would_run": info.plan}
    if as_json:
        whole = {**sections, "obstacle": info.obstacle}
        console.file.write(json.dumps(whole, ensure_ascii=False) + "\n")
        return
    for title, section in sections.items():
        console.print(section_table(title.replace("_", " "), section))
    if info.obstacle is not None:
        console.print(f"cannot run here: {info.obstacle}", style="red", markup=False)


def section_table(title: str, section: Section) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in section.items():
        if value is not None:
            table.add_row(name.replace("_", " "), format_value(name, value))
    return table


def format_value(name: str, value: Any) -> str:
    """Example: ("file_bytes", 98362432) → "98,362,432 (93.8 MiB)"."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and (name.endswith("_bytes") or "_bytes_" in name):
        return f"{value:,} ({_in_units(value)})"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _in_units(num_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.3g} GiB"
