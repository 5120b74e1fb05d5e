"""JOINT. Writes the parameters of an opened checkpoint in native form, a part at a time.

One part is in memory, in the form that `load` keeps it in: a matrix that can stay packed does, all
else is floats. Parts that are there are taken over. Knows no tokenizers and no config.json.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from jaxinfer.checkpoint.checkpoint import Checkpoint, find_sources
from jaxinfer.checkpoint.expert_stack import StackedMatrices
from jaxinfer.checkpoint.leaf_source import LeafSource, PackedForm
from jaxinfer.checkpoint.load import packed_forms, read_arrays
from jaxinfer.checkpoint.native import PARAMS, file_sizes, named_leaves, part_of
from jaxinfer.checkpoint.native_arrays import write_arrays
from jaxinfer.checkpoint.native_form import FLOAT_DTYPES, MANIFEST, VERSION, write_entry
from jaxinfer.checkpoint.safetensors_writer import write_file
from jaxinfer.models.spec import Leaf

Sources = Mapping[Leaf, LeafSource | StackedMatrices]


def write_native(checkpoint: Checkpoint, folder: Path, *, show_progress: bool = True) -> int:
    """Writes params and native.json; returns the bytes of all arrays.

    Args:
        checkpoint: of any kind that is read.
        folder: parts of the same checkpoint that are there are not written again.
        show_progress: a bar.

    Raises:
        CapacityError: the disk is full. CheckpointError: damaged weights, or it cannot be written.
    """
    sources = find_sources(checkpoint)
    named = named_leaves(checkpoint.architecture.leaves(checkpoint.config))
    forms = packed_forms(sources)
    kept = {name: forms.get(x) or _float_dtype(checkpoint, x, sources) for name, x in named.items()}
    parts: dict[str, list[str]] = {}
    for name in named:
        parts.setdefault(part_of(name), []).append(name)
    _drop_others(folder / PARAMS, parts)
    bar = tqdm(parts.items(), "writing parameters", unit="part", disable=not show_progress)
    for part, names in bar:
        path = folder / PARAMS / part
        if not path.is_dir():
            arrays: dict[str, np.ndarray] = {}
            for name in names:
                leaf = named[name]
                arrays |= _arrays(checkpoint, name, leaf, sources[leaf], kept[name])
            write_arrays(path, arrays)
    said = _manifest(checkpoint, kept) | {"files": file_sizes(folder)}
    write_file(folder / MANIFEST, json.dumps(said, indent=1).encode())
    return sum(_num_bytes(named[name], form) for name, form in kept.items())


def _float_dtype(checkpoint: Checkpoint, leaf: Leaf, sources: Sources) -> np.dtype:
    """16 bits where all of it is stored so, float32 for what is decoded, and for vectors."""
    if leaf.role not in ("matrix", "embedding"):
        return FLOAT_DTYPES["F32"]
    infos = checkpoint.tensors.infos
    stored = {infos[name].dtype_name for name in sources[leaf].tensors}
    return FLOAT_DTYPES.get(stored.pop() if len(stored) == 1 else "", FLOAT_DTYPES["F32"])


def _arrays(
    checkpoint: Checkpoint,
    name: str,
    leaf: Leaf,
    source: LeafSource | StackedMatrices,
    kept: PackedForm | np.dtype,
) -> dict[str, np.ndarray]:
    if isinstance(kept, PackedForm):
        found = read_arrays(checkpoint.kind, leaf, source, form=kept)
        return {f"{name}.{kind}": value for kind, value in found.items()}
    return {name: read_arrays(checkpoint.kind, leaf, source, dtype=kept)["value"]}


def _manifest(checkpoint: Checkpoint, kept: Mapping[str, PackedForm | np.dtype]) -> dict[str, Any]:
    is_packed = any(isinstance(form, PackedForm) for form in kept.values())
    scales = checkpoint.quant_format.kv_scales if checkpoint.quant_format else {}
    return {
        "version": VERSION,
        "quantization": checkpoint.quantization if is_packed or scales else None,
        "kv_scales": {str(layer): pair for layer, pair in scales.items()},
        "parameters": {name: write_entry(form) for name, form in kept.items()},
    }


def _num_bytes(leaf: Leaf, kept: PackedForm | np.dtype) -> int:
    if isinstance(kept, PackedForm):
        return kept.num_bytes
    return int(np.prod(leaf.shape, dtype=np.int64)) * kept.itemsize


def _drop_others(folder: Path, parts: Mapping[str, Any]) -> None:
    """What a run that was killed left half-written."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name not in parts:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
