import errno
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open

from jaxinfer.checkpoint import safetensors_writer
from jaxinfer.checkpoint.safetensors_writer import (
    TensorToWrite,
    whole_tensor,
    write_file,
    write_safetensors,
)
from jaxinfer.errors import CapacityError, CheckpointError


def test_the_library_reads_what_is_written(tmp_path: Path) -> None:
    values = {
        "a": np.arange(12, dtype=np.float32).reshape(3, 4),
        "b": np.arange(5).astype(ml_dtypes.bfloat16),
        "c": np.array([[1, -2]], np.int8),
        "d": np.array([7, 8], np.int64),
        "e": np.zeros((0, 3), np.float16),
        "f": np.arange(6, dtype=np.int32).reshape(2, 3).T,  # not contiguous
    }
    tensors = [whole_tensor(*item) for item in values.items()]
    blocks = TensorToWrite(
        name="g",
        dtype=np.dtype(np.float32),
        shape=(3, 4),
        blocks=lambda: (values["a"][row : row + 2] for row in (0, 2)),
    )
    size = write_safetensors(tmp_path / "x.safetensors", [*tensors, blocks])
    assert size == (tmp_path / "x.safetensors").stat().st_size
    with safe_open(tmp_path / "x.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}
        for name, value in {**values, "g": values["a"]}.items():
            np.testing.assert_array_equal(file.get_tensor(name), value)
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]


@pytest.mark.parametrize(
    "code, kind", [(errno.ENOSPC, CapacityError), (errno.EIO, CheckpointError)]
)
def test_a_full_disk_leaves_nothing(
    code: int, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(safetensors_writer.os, "fsync", full)
    with pytest.raises(kind, match="x.safetensors could not be written"):
        write_safetensors(tmp_path / "x.safetensors", [whole_tensor("a", np.zeros(3))])
    with pytest.raises(kind, match="y.json could not be written"):
        write_file(tmp_path / "y.json", b"{}")
    assert not list(tmp_path.iterdir())


def test_a_block_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def blocks() -> list[np.ndarray]:
        raise ZeroDivisionError

    tensor = TensorToWrite(name="a", dtype=np.dtype(np.float32), shape=(3,), blocks=blocks)
    with pytest.raises(ZeroDivisionError):
        write_safetensors(tmp_path / "x.safetensors", [tensor])
    assert not list(tmp_path.iterdir())
