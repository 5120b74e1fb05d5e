"""Safetensors: every dtype, shards and index, and damaged or hostile files."""

import json
import struct
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxinfer.checkpoint.safetensors_file import (
    INDEX_FILE,
    SINGLE_FILE,
    find_safetensors,
    open_safetensors,
)
from jaxinfer.errors import CheckpointError, UnsupportedError
from tests.support.tiny_models import write_safetensors_header, write_tiny

DTYPES = {
    "F32": np.float32,
    "F64": np.float64,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "I8": np.int8,
    "U8": np.uint8,
    "I16": np.int16,
    "U16": np.uint16,
    "I32": np.int32,
    "U32": np.uint32,
    "I64": np.int64,
    "U64": np.uint64,
    "BOOL": np.bool_,
}


def write_one(folder: Path, entries: dict, data: bytes) -> Path:
    write_safetensors_header(folder / SINGLE_FILE, json.dumps(entries).encode(), data)
    return folder


def entry(shape: list, span: list, dtype: str = "F32") -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": span}


@pytest.mark.parametrize("name", DTYPES)
def test_reads_rows_of_every_dtype(tmp_path: Path, name: str) -> None:
    values = np.array([[0, 1], [1, 0], [1, 1], [0.5, 2]]).astype(DTYPES[name])
    data = values.tobytes()
    folder = write_one(tmp_path, {"x": entry([4, 2], [0, len(data)], name)}, data)
    source = open_safetensors(folder)
    assert source.infos["x"].dtype_name == name
    rows = source.read_rows("x", 1, 3, np.float32)
    np.testing.assert_array_equal(rows, values[1:3].astype(np.float32))
    assert rows.dtype == np.float32


def test_reads_what_the_library_writes(tmp_path: Path) -> None:
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros((0, 3), np.int8)}
    save_file(tensors, tmp_path / SINGLE_FILE, metadata={"format": "pt"})
    source = open_safetensors(tmp_path)
    assert set(source.infos) == {"a", "b"}
    for name, value in tensors.items():
        np.testing.assert_array_equal(source.read_rows(name, 0, len(value), value.dtype), value)


def test_shards_are_one_source(tmp_path: Path) -> None:
    one, many = write_tiny(tmp_path / "one"), write_tiny(tmp_path / "many", num_shards=3)
    single, sharded = open_safetensors(one), open_safetensors(many)
    assert set(single.infos) == set(sharded.infos) and len(sharded.files) == 3
    for name, info in single.infos.items():
        expected = single.read_rows(name, 0, info.shape[0], np.float32)
        np.testing.assert_array_equal(
            sharded.read_rows(name, 0, info.shape[0], np.float32), expected
        )


def test_shards_without_index_are_complete_or_refused(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path, num_shards=2)
    (folder / INDEX_FILE).unlink()
    assert len(find_safetensors(folder)) == 2
    (folder / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="model-00001-of-00002.safetensors"):
        find_safetensors(folder)


def test_missing_shards_are_listed_before_any_is_read(tmp_path: Path) -> None:
    """BB-02 (vllm#34859, sglang#32279): a lost shard left weights uninitialised."""
    folder = write_tiny(tmp_path, num_shards=4)
    for number in (2, 4):
        (folder / f"model-{number:05d}-of-00004.safetensors").unlink()
    (folder / "model-00001-of-00004.safetensors").write_bytes(b"not looked at")
    with pytest.raises(CheckpointError, match="lacks 2 of the 4") as caught:
        open_safetensors(folder)
    assert "model-00002-of-00004" in str(caught.value)
    assert "model-00004-of-00004" in str(caught.value)


def test_index_of_four_files_is_not_served_by_two_others(tmp_path: Path) -> None:
    """BB-02, second input: two other files hold everything."""
    folder = write_tiny(tmp_path, num_shards=2)
    index = json.loads((folder / INDEX_FILE).read_text())
    names = list(index["weight_map"])
    index["weight_map"] = {name: f"part-{i % 4}.safetensors" for i, name in enumerate(names)}
    (folder / INDEX_FILE).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"lacks 4 of the 4.*part-0.*part-3"):
        open_safetensors(folder)


def test_index_that_names_a_tensor_no_file_holds(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path, num_shards=2)
    index = json.loads((folder / INDEX_FILE).read_text())
    index["weight_map"]["ghost"] = "model-00001-of-00002.safetensors"
    (folder / INDEX_FILE).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="'ghost'"):
        open_safetensors(folder)


@pytest.mark.parametrize("name", ["../model.safetensors", "/x.safetensors", "", 3])
def test_index_cannot_leave_the_folder(tmp_path: Path, name: object) -> None:
    (tmp_path / INDEX_FILE).write_text(json.dumps({"weight_map": {"x": name}}))
    with pytest.raises(CheckpointError, match="plain name"):
        open_safetensors(tmp_path)


def test_folders_without_readable_weights(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no .*safetensors"):
        find_safetensors(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(UnsupportedError, match="pickled"):
        find_safetensors(tmp_path)
    for name in ("a", "b"):
        (tmp_path / f"{name}.safetensors").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="belong together"):
        find_safetensors(tmp_path)


def test_truncated_file_names_file_and_tensor(tmp_path: Path) -> None:
    """BB-03 (a) (vmlx-swift#217, sparkinfer#25): bytes past the end read as zeros."""
    path = write_tiny(tmp_path) / SINGLE_FILE
    path.write_bytes(path.read_bytes()[:-4096])
    with pytest.raises(CheckpointError, match=r"model.safetensors is truncated: tensor '"):
        open_safetensors(tmp_path)


@pytest.mark.parametrize("length", [2**60, 2**64 - 1, 100_000_001, 5000])
def test_header_length_that_cannot_be(tmp_path: Path, length: int) -> None:
    """BB-03 (f): refused in milliseconds and without a large allocation."""
    (tmp_path / SINGLE_FILE).write_bytes(struct.pack("<Q", length) + b"{}" + bytes(1000))
    start = time.perf_counter()
    with pytest.raises(CheckpointError, match=str(length)):
        open_safetensors(tmp_path)
    assert time.perf_counter() - start < 0.5


HOSTILE = {
    "past the end": {"x": entry([4], [0, 16]), "y": entry([4], [2**63, 2**63 + 16])},
    "overlap": {"x": entry([4], [0, 16]), "y": entry([4], [8, 24])},
    "gap": {"x": entry([2], [0, 8]), "y": entry([2], [24, 32])},
    "trailing bytes": {"x": entry([2], [0, 8])},
    "size against shape": {"x": entry([3], [0, 32])},
    "product that wraps 64 bits": {"x": entry([2**32, 2**32], [0, 0])},
    "negative axis": {"x": entry([-8], [0, 32])},
    "boolean axis": {"x": entry([True], [0, 32])},
    "fraction": {"x": entry([8.0], [0, 32])},
    "offsets backwards": {"x": entry([8], [32, 0])},
    "no shape": {"x": {"dtype": "F32", "data_offsets": [0, 32]}},
    "no object": {"x": [1, 2]},
}


@pytest.mark.parametrize("case", HOSTILE)
def test_headers_that_lie(tmp_path: Path, case: str) -> None:
    with pytest.raises(CheckpointError, match="model.safetensors"):
        open_safetensors(write_one(tmp_path, HOSTILE[case], bytes(32)))


@pytest.mark.parametrize(
    "header", [b"[]", b"{", b'{"x": 1, "x": 2}', b"\xff\xfe", b"[" * 100_000, b""]
)
def test_headers_that_are_no_object(tmp_path: Path, header: bytes) -> None:
    write_safetensors_header(tmp_path / SINGLE_FILE, header)
    with pytest.raises(CheckpointError, match="header of"):
        open_safetensors(tmp_path)


def test_unknown_dtype_is_refused_by_name(tmp_path: Path) -> None:
    folder = write_one(tmp_path, {"x": entry([2], [0, 1], "F4")}, b"x")
    with pytest.raises(UnsupportedError, match="'x' has dtype 'F4'"):
        open_safetensors(folder)


def test_a_pointer_instead_of_the_file(tmp_path: Path) -> None:
    (tmp_path / SINGLE_FILE).write_text("version https://git-lfs.example/spec/v1\noid sha256:0\n")
    with pytest.raises(CheckpointError, match="LFS"):
        open_safetensors(tmp_path)


def test_empty_file(tmp_path: Path) -> None:
    (tmp_path / SINGLE_FILE).write_bytes(b"")
    with pytest.raises(CheckpointError, match="0 bytes"):
        open_safetensors(tmp_path)


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path, num_shards=2)
    (folder / INDEX_FILE).unlink()
    first = folder / "model-00001-of-00002.safetensors"
    (folder / "model-00002-of-00002.safetensors").write_bytes(first.read_bytes())
    with pytest.raises(CheckpointError, match="is in .*00001.* and in .*00002"):
        open_safetensors(folder)
