"""Lines of every kind of input, with the numbers that people see."""

import gzip
import io
import json
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from jaxinfer.errors import ConfigError
from jaxinfer.jobs.batch_input import open_input
from jaxinfer.jobs.batch_request import decode_line


def lines(source: Path | str, tmp_path: Path, **options: int) -> list[tuple]:
    opened = open_input(source, tmp_path / "spool.jsonl", **options)
    found = [(one.position, one.file, one.number, one.data) for one in opened.lines()]
    assert [(one.position, one.data) for one in opened.lines()] == [(r[0], r[3]) for r in found]
    return found


def test_marks_line_ends_and_blank_lines(tmp_path: Path) -> None:
    """BB-47, jsonlines#68, recall#38: numbers are those of the file, blank lines counted."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\xef\xbb\xbf1\r\n\r\n  \t\n\xef\xbb\xbf2 \n\xef\xbb\xbf\n3")
    wanted = [(0, "in.jsonl", 1, b"1"), (1, "in.jsonl", 4, b"2 "), (2, "in.jsonl", 6, b"3")]
    assert lines(path, tmp_path) == wanted


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes("a\u2028b\x0cc\x85d\re\n".encode())
    assert [row[3] for row in lines(path, tmp_path)] == ["a\u2028b\x0cc\x85d\re".encode()]


@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_line_over_the_limit_keeps_its_beginning(tmp_path: Path, end: bytes) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"a" * 5000 + b"\n" + b"b" * 3_000_000 + b"\n" + b"c" * 5001 + end)
    opened = open_input(path, tmp_path / "spool", max_line_bytes=5000)
    found = [(len(one.data), one.size, one.number, one.is_cut) for one in opened.lines()]
    assert found == [
        (5000, 5000, 1, False),
        (4096, 3_000_001, 2, True),
        (4096, 5001 + len(end), 3, True),
    ]


def test_compression_is_seen_in_the_bytes(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"  # whatever the name says
    path.write_bytes(gzip.compress(b"1\n2\n") + gzip.compress(b"3\n"))
    assert [row[3] for row in lines(path, tmp_path)] == [b"1", b"2", b"3"]


def test_a_cut_archive_is_one_message(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl.gz"
    path.write_bytes(gzip.compress(os.urandom(4000).hex().encode())[:-900])
    with pytest.raises(ConfigError, match="cannot be read to its end"):
        lines(path, tmp_path)


def test_a_folder_of_shards_in_the_order_of_their_names(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "b.jsonl").write_bytes(b"3\n")
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(b"\n1\n2"))
    for other in ("notes.txt", ".hidden.jsonl", "a.jsonl.summary.json"):
        (folder / other).write_bytes(b"no\n")
    assert lines(folder, tmp_path) == [
        (0, "a.jsonl.gz", 2, b"1"),
        (1, "a.jsonl.gz", 3, b"2"),
        (2, "b.jsonl", 1, b"3"),
    ]


def test_standard_input_is_spooled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = SimpleNamespace(buffer=io.BytesIO(gzip.compress(b"1\n2\n")))
    monkeypatch.setattr(sys, "stdin", stream)
    assert [row[3] for row in lines("-", tmp_path)] == [b"1", b"2"]


def test_a_pipe_is_spooled(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(b"1\n2\n"))
    writer.start()
    assert [row[3] for row in lines(pipe, tmp_path)] == [b"1", b"2"]
    writer.join()


def test_what_is_no_input(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="was not found"):
        lines(tmp_path / "none.jsonl", tmp_path)
    with pytest.raises(ConfigError, match="without shards"):
        lines(tmp_path / "empty", tmp_path)


def test_parquet_rows_are_lines_without_their_nulls(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="the parquet extra is not installed")
    from pyarrow import parquet

    messages = [{"role": "user", "content": "hi", "name": None}]
    rows = [
        {"custom_id": "a", "prompt": "x", "max_tokens": None, "messages": None},
        {"custom_id": "b", "prompt": None, "max_tokens": 3, "messages": messages},
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "in.parquet")
    found = lines(tmp_path / "in.parquet", tmp_path)
    assert [row[2] for row in found] == [1, 2]
    assert [json.loads(row[3]) for row in found] == [
        {"custom_id": "a", "prompt": "x"},
        {"custom_id": "b", "max_tokens": 3, "messages": [{"role": "user", "content": "hi"}]},
    ]
    (tmp_path / "bad.parquet").write_bytes(b"PAR1no")
    with pytest.raises(ConfigError, match="no Parquet file"):
        lines(tmp_path / "bad.parquet", tmp_path)


def test_parquet_of_bytes_long_rows_and_strange_types(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="the parquet extra is not installed")
    from pyarrow import parquet

    rows = [
        {"custom_id": "a", "prompt": "h\u00e9".encode()},
        {"custom_id": "b", "prompt": b"\xff"},
        {"custom_id": "c", "prompt": b"x" * 9000},
    ]
    path = tmp_path / "in.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    opened = open_input(path, tmp_path / "spool", max_line_bytes=5000)
    text, broken, long = ((one, decode_line(one, single_file=True)) for one in opened.lines())
    assert text[1].value == {"custom_id": "a", "prompt": "h\u00e9"}
    assert "UTF-8" in str(broken[1].error) and broken[1].custom_id == "b"
    assert long[0].is_cut and long[0].size > 9000 and len(long[0].data) == 4096
    assert "max_line_bytes" in str(long[1].error) and long[1].custom_id == "c"


def test_parquet_under_another_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"PAR1....PAR1")
    with pytest.raises(ConfigError, match="is Parquet.*such a name"):
        lines(tmp_path / "in.jsonl", tmp_path)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"PAR1....PAR1")))
    with pytest.raises(ConfigError, match="'-' is Parquet.*the file itself"):
        lines("-", tmp_path)


def test_parquet_without_pyarrow_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "in.parquet").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"jaxinfer\[parquet\]"):
        lines(tmp_path / "in.parquet", tmp_path)
