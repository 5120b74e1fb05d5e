"""HOST. The folder in which a result grows, beside the place where it will be.

    OUT.partial/   making.json   what is being made, of what
                   model-00002-of-00031.safetensors …   what is finished, each file whole
                   params/layers.00000 …                likewise in native form
    OUT/           appears by one rename, when all is there

A later run of the same command finds its finished files; another one is refused. Knows no model.
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxinfer.checkpoint.json_file import read_json
from jaxinfer.checkpoint.safetensors_writer import write_file
from jaxinfer.errors import CheckpointError, ConfigError

_MAKING = "making.json"
_ENDING = ".partial"


@contextmanager
def work_folder(
    out: Path, fingerprint: Mapping[str, Any], *, overwrite: bool = False
) -> Iterator[Path]:
    """The folder to write to; it becomes `out` when the block ends without an error.

    Args:
        fingerprint: what decides the bytes of the result, for JSON.
        overwrite: a model that is at `out`, and work on another one, may go.

    Raises:
        ConfigError: `out` exists, is no place for a model, or other work is under way there.
    """
    _check_place(out, overwrite=overwrite)
    folder = out.with_name(out.name + _ENDING)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made: {error}; choose another place") from error
    with _locked(folder):
        _begin(folder, json.loads(json.dumps(fingerprint)), overwrite=overwrite)
        yield folder
        _replace(folder, out)
        (out / _MAKING).unlink()


def _check_place(out: Path, *, overwrite: bool) -> None:
    if not out.name or out.name == "..":
        raise ConfigError(f"{str(out)!r} is no name for a folder; give one")
    if not out.exists():
        return
    is_model = out.is_dir() and ((out / "config.json").is_file() or not any(out.iterdir()))
    if not is_model:
        raise ConfigError(f"{out} exists and holds no model; it is never replaced: choose another")
    if not overwrite:
        raise ConfigError(f"{out} exists; choose another folder, or pass overwrite (--overwrite)")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Held by one process; the kernel gives it back when that ends, however it does."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                f"another process is at work in {folder}; wait for it, or choose another folder"
            ) from None
        yield
    finally:
        os.close(handle)


def _begin(folder: Path, fingerprint: dict[str, Any], *, overwrite: bool) -> None:
    """Takes over what the same work has left, or starts anew."""
    path = folder / _MAKING
    earlier = _read(path) if path.exists() else None
    if earlier == fingerprint:
        return
    finished = [*folder.glob("*.safetensors"), *folder.glob("params/*")]
    if finished and not overwrite:
        changed = _difference(earlier or {}, fingerprint)
        raise ConfigError(
            f"{folder} holds {len(finished)} finished files of other work ({changed}); run that "
            "command again to go on with it, or pass overwrite (--overwrite) to drop it"
        )
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    write_file(path, json.dumps(fingerprint, indent=1).encode())


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return read_json(path)
    except CheckpointError:
        return None


def _difference(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    names = [name for name in now if earlier.get(name) != now[name]]
    return ", ".join(f"{name}: {earlier.get(name)!r}, now {now[name]!r}" for name in names[:3])


def _replace(folder: Path, out: Path) -> None:
    """Puts the folder in the place of `out`, which is away only between two renames."""
    old = out.with_name(out.name + ".replaced")
    try:
        if out.exists():
            shutil.rmtree(old, ignore_errors=True)
            os.rename(out, old)
        os.rename(folder, out)
    except OSError as error:
        with contextlib.suppress(OSError):
            if not out.exists() and old.exists():
                os.rename(old, out)
        raise CheckpointError(
            f"{folder} is finished and cannot be renamed to {out}: {error}; rename it yourself"
        ) from error
    shutil.rmtree(old, ignore_errors=True)
