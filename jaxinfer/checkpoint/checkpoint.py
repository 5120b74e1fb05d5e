"""JOINT. A checkpoint that is opened: its config and where its tensors are, nothing decoded yet.

`load` makes parameters of it. Does not know tokenizers: it says where their files are.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from jaxinfer.checkpoint.expert_stack import StackedMatrices
from jaxinfer.checkpoint.gguf_config import read_gguf_config
from jaxinfer.checkpoint.gguf_file import open_gguf
from jaxinfer.checkpoint.hf_config import CONFIG_FILE, read_generation_config, read_hf_config
from jaxinfer.checkpoint.json_file import read_json
from jaxinfer.checkpoint.leaf_match import match_leaves, num_elements
from jaxinfer.checkpoint.leaf_source import LeafSource
from jaxinfer.checkpoint.native import NativeFiles, native_sources, open_native
from jaxinfer.checkpoint.quant_formats.gguf_blocks import GgufBlocks
from jaxinfer.checkpoint.quant_formats.quant_config import read_quant_format
from jaxinfer.checkpoint.quant_formats.quant_format import QuantFormat
from jaxinfer.checkpoint.safetensors_file import find_safetensors, open_safetensors
from jaxinfer.checkpoint.source import resolve_source
from jaxinfer.checkpoint.tensor_file import CheckpointKind, TensorSource
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.models.spec import Architecture, Leaf

_FLOATS = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a model is and where its weights are.

    path: the folder or the (first) GGUF file. folder: where tokenizer files may lie, None for GGUF.
    gguf_metadata: plain values and lists, None for a Hugging Face folder.
    generation_config: generation_config.json, empty where there is none.
    quant_format: reads quantized matrices; None where nothing is quantized.
    quantization: a summary for people, such as "Q4_1 ×210, Q8_0 ×1, F32 ×61" or "none (bf16)".
    num_parameters: a tied table counted once. file_bytes: of all weight files.
    """

    config: ModelConfig
    architecture: Architecture
    tensors: TensorSource
    kind: CheckpointKind
    path: Path
    folder: Path | None
    gguf_metadata: Mapping[str, Any] | None
    generation_config: Mapping[str, Any]
    quant_format: QuantFormat | None
    quantization: str
    num_parameters: int
    file_bytes: int


def open_checkpoint(model: str | Path, *, show_progress: bool = True) -> Checkpoint:
    """The checkpoint that `model` names, with config and tensor table read and checked.

    Args:
        model: a Hugging Face folder, a `.gguf` file, a hub id "org/name" or a demo model's name.
        show_progress: bars while something is downloaded.

    Raises:
        CheckpointError: not found, missing files, or damaged. UnsupportedError: not run.
    """
    source = resolve_source(model, show_progress=show_progress)
    tensors: TensorSource
    quant_format: QuantFormat | None
    if source.kind == "native":
        config, architecture, _ = read_hf_config(source.path)
        tensors, quant_format = open_native(source.path, architecture.leaves(config))
        metadata, generation = None, read_generation_config(source.path)
    elif source.kind == "gguf":
        tensors = open_gguf(source.path)
        config, architecture = read_gguf_config(tensors.metadata, tensors)
        metadata, generation = tensors.metadata, {}
        quant_format = GgufBlocks(tensors)
    else:
        read_json(source.path / CONFIG_FILE)
        find_safetensors(source.path)  # missing shards are named whatever the config says
        config, architecture, raw = read_hf_config(source.path)
        tensors = open_safetensors(source.path)
        quant_format = read_quant_format(source.path, raw, tensors)
        metadata, generation = None, read_generation_config(source.path)
    return Checkpoint(
        config=config,
        architecture=architecture,
        tensors=tensors,
        kind=source.kind,
        path=source.path,
        folder=source.folder,
        gguf_metadata=metadata,
        generation_config=generation,
        quant_format=quant_format,
        quantization=_quantization(tensors, quant_format),
        num_parameters=num_elements(jax.tree.leaves(architecture.leaves(config))),
        file_bytes=sum(path.stat().st_size for path in tensors.files),
    )


def find_sources(checkpoint: Checkpoint) -> dict[Leaf, LeafSource | StackedMatrices]:
    """What fills each leaf of the model, matched and checked; reads no weights.

    Raises:
        CheckpointError, UnsupportedError: as `match_leaves`.
    """
    tree = checkpoint.architecture.leaves(checkpoint.config)
    if isinstance(checkpoint.tensors, NativeFiles):
        return native_sources(checkpoint.tensors, tree)
    return match_leaves(
        jax.tree.leaves(tree),
        checkpoint.config,
        checkpoint.tensors,
        checkpoint.kind,
        quant_format=checkpoint.quant_format,
    )


def _quantization(tensors: TensorSource, quant_format: QuantFormat | None) -> str:
    infos = tensors.infos.values()
    if quant_format is not None and not isinstance(quant_format, GgufBlocks):
        return quant_format.summary
    if all(info.dtype_name in _FLOATS for info in infos):
        sizes = Counter[str]()
        for info in infos:
            sizes[info.dtype_name] += info.nbytes
        return f"none ({', '.join(name.lower() for name, _ in sizes.most_common(1))})"
    counts = Counter(info.dtype_name for info in infos)
    floats = [(name, counts.pop(name)) for name in _FLOATS if name in counts]
    return ", ".join(f"{name} ×{count}" for name, count in [*counts.most_common(), *floats])
