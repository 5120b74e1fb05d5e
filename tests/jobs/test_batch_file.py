"""The output file: groups, torn lines, rewriting; and the ledger that knows where lines are."""

import os
from pathlib import Path

import pytest

from jaxinfer.errors import JaxInferError
from jaxinfer.jobs import batch_file
from jaxinfer.jobs.batch_file import OutputFile, cut_torn_line, read_lines, rewrite, write_whole
from jaxinfer.jobs.batch_input import InputLine
from jaxinfer.jobs.batch_ledger import Landed, Ledger, line_digest, output_id, split_output_id


def test_lines_land_in_groups(tmp_path: Path) -> None:
    path, landed = tmp_path / "out", list[list[Landed]]()
    path.write_bytes(b"before\n")
    file = OutputFile(path, landed.append)
    for position in range(batch_file.GROUP_LINES + 1):
        file.add(position, b"x%d" % position, failed=position == 1)
    assert len(landed) == 1 and len(landed[0]) == batch_file.GROUP_LINES
    assert landed[0][1] == Landed(position=1, failed=True, offset=10, size=3)
    file.flush_if_due()
    assert len(landed) == 1, "a group is written when it is full or has waited"
    file.flush()
    file.close()
    assert path.read_bytes().count(b"\n") == batch_file.GROUP_LINES + 2
    for one in (*landed[0], *landed[1]):
        assert path.read_bytes()[one.offset :][: one.size] == b"x%d\n" % one.position


def test_a_write_that_fails_half_way_leaves_whole_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write, calls = tmp_path / "out", os.write, list[int]()

    def half(file: int, data: bytes) -> int:
        calls.append(len(data))
        if len(calls) == 1:
            return write(file, bytes(data)[: len(data) // 2])
        raise OSError(28, "No space left on device")

    file = OutputFile(path, lambda landed: None)
    file.add(0, b"first", failed=False)
    file.flush()
    monkeypatch.setattr(batch_file.os, "write", half)
    file.add(1, b"second" * 10, failed=False)
    with pytest.raises(JaxInferError, match="No space left.*byte 6"):
        file.flush()
    file.close()
    assert path.read_bytes() == b"first\n"


@pytest.mark.parametrize(
    ("content", "kept"),
    [(b"", b""), (b"a\nb\n", b"a\nb\n"), (b"a\nb", b"a\n"), (b"ab", b""), (b"\nx", b"\n")],
)
def test_what_stands_behind_the_last_line_feed_is_cut(
    tmp_path: Path, content: bytes, kept: bytes
) -> None:
    path = tmp_path / "out"
    path.write_bytes(content)
    assert cut_torn_line(path) == len(content) - len(kept)
    assert path.read_bytes() == kept


def test_a_torn_line_longer_than_a_block(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"a\n" + b"b" * 200_000)
    assert cut_torn_line(path) == 200_000 and path.read_bytes() == b"a\n"


def test_rewriting_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"aa\nb\nccc\n")
    assert [offset for offset, _ in read_lines(path)] == [0, 3, 5]

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(batch_file.os, "fsync", fail)
        with pytest.raises(JaxInferError, match="it is as it was"):
            rewrite(path, [(5, 4)])
    assert [one.name for one in tmp_path.iterdir()] == ["out"]
    assert path.read_bytes() == b"aa\nb\nccc\n"
    rewrite(path, [(5, 4), (0, 3)])
    assert path.read_bytes() == b"ccc\naa\n"
    write_whole(path, b"z")
    assert path.read_bytes() == b"z"


def line(position: int, data: bytes = b"x") -> InputLine:
    return InputLine(position=position, file="f", number=position + 1, data=data, size=len(data))


def test_the_ledger_in_more_lines_than_a_block(tmp_path: Path) -> None:
    count = 9000
    ledger = Ledger(tmp_path / "ledger")
    ledger.fill(((line(n), f"id{n}" if n % 9 else None) for n in range(count)), (1, 3))
    assert ledger.counts() == (0, 0, 3000)
    seen = []
    for position, digest in ledger.pending():
        seen.append(position)
        assert digest == line_digest(line(position), f"id{position}" if position % 9 else None)
        if position % 2:  # lines may land while the pending ones are gone through
            ledger.land([Landed(position=position, failed=False, offset=-position, size=1)])
    assert seen == list(range(1, count, 3))
    assert ledger.counts() == (1500, 0, 1500)
    assert len(list(ledger.landed())) == 1500
    found = ledger.find("id7", "")
    assert found is not None and found.position == 7
    unreadable = ledger.find(None, line_digest(line(9), None))
    assert unreadable is not None and unreadable.position == 9
    assert ledger.find("id9", "") is None
    ledger.forget_landed()
    assert ledger.counts() == (0, 0, 3000)
    ledger.close()


def test_output_ids_name_job_and_line() -> None:
    digest = line_digest(line(0), "a")
    assert split_output_id(output_id("a" * 12, digest)) == ("a" * 12, digest)
    assert digest != line_digest(line(0, b"y"), "a") != line_digest(line(0), "b")
    for other in (None, 5, "x", "batch_req_1", "batch_req_a_b"):
        assert split_output_id(other) is None
