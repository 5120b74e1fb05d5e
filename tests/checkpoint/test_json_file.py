"""JSON files of a checkpoint: bounded, and objects only."""

from pathlib import Path

import pytest

from jaxinfer.checkpoint.json_file import read_json
from jaxinfer.errors import CheckpointError


def test_reads_an_object_with_or_without_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for mark in (b"", b"\xef\xbb\xbf"):
        path.write_bytes(mark + b'{"a": [1, null]}')
        assert read_json(path) == {"a": [1, None]}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="x.json"):
        read_json(tmp_path / "x.json")


def test_a_file_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    with path.open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(CheckpointError, match="1073741824 bytes"):
        read_json(path)


@pytest.mark.parametrize("content", ["", "null", '"x"', '{"a": 1, "a": 2}', "{'a': 1}"])
def test_what_is_no_object(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(CheckpointError, match="x.json"):
        read_json(tmp_path / "x.json")
