"""JOINT. `convert_model`: a checkpoint of any kind as a native one, which holds what would run.

Nothing is rounded: packed matrices stay packed, floats stay floats. Knows no method.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxinfer.checkpoint.checkpoint import Checkpoint, open_checkpoint
from jaxinfer.checkpoint.native_form import is_native
from jaxinfer.checkpoint.native_writer import write_native
from jaxinfer.errors import ConfigError
from jaxinfer.quantize.ct_weights import float_dtype
from jaxinfer.quantize.folder_files import drop_quantization, model_config, write_files
from jaxinfer.quantize.work_folder import work_folder

_VERSION = 1  # of what these files write; work of another version is not taken over


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedModel:
    """What was written. path: of the folder. quantization: of the source, for people.
    source_bytes: of its weight files. bytes: of all arrays. seconds: of this run."""

    path: Path
    quantization: str
    source_bytes: int
    bytes: int
    seconds: float


def convert_model(
    model: str | Path, out: str | Path, *, overwrite: bool = False, show_progress: bool = True
) -> ConvertedModel:
    """Writes a native checkpoint with the numbers of `model`.

    Args:
        model: demo name, folder, GGUF file or hub id; quantized or not.
        out: the folder to be made; it appears when all is there.
        overwrite: a model that is at `out` may go, and unfinished work on another one.
        show_progress: bars.

    Raises:
        ConfigError: a place that is taken. UnsupportedError: a GGUF file's model that no
            config.json describes. CheckpointError: damaged weights.
        CapacityError: the disk is full; with space freed, the same call goes on.
    """
    began, out = time.monotonic(), Path(out).expanduser().absolute()
    checkpoint = open_checkpoint(model, show_progress=show_progress)
    if out == checkpoint.path.absolute() or out in checkpoint.path.absolute().parents:
        raise ConfigError(f"out={str(out)!r} holds the model itself; choose another folder")
    config = model_config(checkpoint, float_dtype(checkpoint, "auto"))
    with work_folder(out, _fingerprint(checkpoint), overwrite=overwrite) as folder:
        write_files(folder, checkpoint, config, None)
        num_bytes = write_native(checkpoint, folder, show_progress=show_progress)
    return ConvertedModel(
        path=out,
        quantization=checkpoint.quantization,
        source_bytes=checkpoint.file_bytes,
        bytes=num_bytes,
        seconds=time.monotonic() - began,
    )


def turn_native(folder: Path, files: tuple[Path, ...], *, show_progress: bool) -> int:
    """Makes a folder of compressed-tensors, whose weights are in `files`, a native one; returns the
    bytes of all arrays. It may end anywhere and be called again.

    Raises:
        CapacityError: the disk is full. CheckpointError: it cannot be written.
    """
    if not is_native(folder):
        write_native(open_checkpoint(folder), folder, show_progress=show_progress)
    drop_quantization(folder)
    for file in files:
        file.unlink(missing_ok=True)
    return sum(info.nbytes for info in open_checkpoint(folder).tensors.infos.values())


def _fingerprint(checkpoint: Checkpoint) -> dict[str, Any]:
    """What decides the numbers of the result."""
    files = [(path, path.stat()) for path in checkpoint.tensors.files]
    return {
        "version": _VERSION,
        "format": "native",
        "model": str(checkpoint.path.absolute()),
        "files": [[path.name, stat.st_size, stat.st_mtime_ns] for path, stat in files],
        "config": repr(checkpoint.config),
    }
