"""JOINT. Named arrays in a folder, written and read by orbax: a part of a native checkpoint.

A part is a flat mapping of names to arrays. What orbax reads of it is JSON and what tensorstore
keeps; nothing in it names code. Orbax is imported when a part is written or read, not before. Knows
no model.
"""

import errno
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from jaxinfer.checkpoint.json_file import read_json
from jaxinfer.errors import CapacityError, CheckpointError

Spec = tuple[tuple[int, ...], np.dtype]  # shape and dtype

_TREE_FILE = "_METADATA"
_DISK_IS_FULL = ("No space left", "Disk quota", "File too large", "RESOURCE_EXHAUSTED")


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes a part; the folder `path` appears when all is there, and replaces an older one.

    Raises:
        CapacityError: the disk is full. CheckpointError: it cannot be written.
    """
    path = path.absolute()  # tensorstore takes no other
    if path.exists():
        shutil.rmtree(path)
    try:
        with _checkpointer() as checkpointer:
            checkpointer.save(path, dict(arrays))
    except Exception as error:  # whatever orbax and tensorstore raise
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        if full or any(sign in str(error) for sign in _DISK_IS_FULL):
            raise CapacityError(
                f"{path} could not be written: {_first_line(error)}; free space on that disk, or "
                "write to another one"
            ) from error
        raise CheckpointError(
            f"{path} could not be written: {_first_line(error)}; check the folder and its "
            "permissions"
        ) from error


def check_arrays(path: Path, expected: Mapping[str, Spec]) -> None:
    """Compares what a part says it holds with what it has to hold; reads no values.

    Raises:
        CheckpointError: arrays are missing, left over, or of another shape or dtype; or the part is
            damaged.
    """
    path = path.absolute()  # tensorstore takes no other
    _check_names(path, expected)
    with _damage_named(path), _checkpointer() as checkpointer:
        tree: Mapping[str, Any] = checkpointer.metadata(path).item_metadata.tree
        # A chunk is what is decoded at once: it is never larger than its array.
        found = {
            name: (tuple(one.shape), np.dtype(one.dtype), tuple(one.storage.chunk_shape))
            for name, one in tree.items()
        }
    for name, (shape, dtype) in expected.items():
        if found.get(name) != (shape, dtype, shape):
            is_shape, is_dtype, is_chunk = found.get(name, (None, None, None))
            raise CheckpointError(
                f"array {name!r} in {path} is {is_dtype} {is_shape} in chunks of {is_chunk}; the "
                f"model asks for {dtype} {shape} in one; the checkpoint is damaged, or config and "
                "weights are not of the same model"
            )


def read_arrays(path: Path, expected: Mapping[str, Spec]) -> dict[str, np.ndarray]:
    """The arrays of a part that `check_arrays` has seen.

    Raises:
        CheckpointError: it is damaged.
    """
    import orbax.checkpoint as ocp

    path = path.absolute()  # tensorstore takes no other
    kinds = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in expected}
    with _damage_named(path), _checkpointer() as checkpointer:
        arrays = checkpointer.restore(path, args=ocp.args.PyTreeRestore(restore_args=kinds))
    for name, (shape, dtype) in expected.items():
        value = arrays.get(name)
        if value is None or (tuple(value.shape), value.dtype) != (shape, dtype):
            raise CheckpointError(
                f"array {name!r} in {path} is not what it was when the checkpoint was opened; "
                "leave its files alone while they are read"
            )
    return arrays


def _check_names(path: Path, expected: Mapping[str, Spec]) -> None:
    """The names, from plain JSON, before orbax looks at anything."""
    entries = read_json(path / _TREE_FILE).get("tree_metadata")
    if not isinstance(entries, dict) or not all(map(_is_plain, entries.values())):
        raise CheckpointError(
            f"{path / _TREE_FILE} does not list plain arrays by name; the checkpoint is damaged: "
            "make it again"
        )
    names = {entry["key_metadata"][0]["key"] for entry in entries.values()}
    for what, wrong in (
        ("lacks", sorted(set(expected) - names)),
        ("also holds", sorted(names - set(expected))),
    ):
        if wrong:
            raise CheckpointError(
                f"{path} {what} {len(wrong)} arrays beside the {len(expected)} that the model "
                f"asks for: {', '.join(map(repr, wrong[:5]))}; config and weights are not of the "
                "same model, or the checkpoint is damaged: make it again"
            )


def _is_plain(entry: Any) -> bool:
    """Whether an entry is an array under one name."""
    try:
        (key,), value = entry["key_metadata"], entry["value_metadata"]
        return isinstance(key["key"], str) and value["value_type"] == "np.ndarray"
    except (KeyError, TypeError, ValueError):
        return False


def _checkpointer() -> Any:
    import orbax.checkpoint as ocp

    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler())


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # whatever orbax and tensorstore raise
        raise CheckpointError(
            f"{path} cannot be read ({type(error).__name__}: {_first_line(error)}); the checkpoint "
            "is damaged: make it again"
        ) from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "no message")[:300]
