"""HOST. The output file of a batch job: appended and synced in groups, valid whatever happens.

    | whole lines, on the disk | a group being written |
    0                       _end                    torn by a crash: cut off at the next start

Knows lines and bytes; what a line says, the caller knows. Every rewriting goes to a file beside it
that then takes its name.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from jaxinfer.errors import ConfigError, JaxInferError
from jaxinfer.jobs.batch_ledger import Landed

GROUP_LINES = 128
GROUP_BYTES = 2**20
GROUP_SECONDS = 0.5
_LOCK_POLL_S = 0.1


@dataclass(slots=True)
class _Group:
    """Lines that are not written yet."""

    lines: list[tuple[int, bool, bytes]] = field(default_factory=list)
    num_bytes: int = 0
    since_s: float = 0.0


class OutputFile:
    """Appends lines to a file, a group at a time; while it is open nobody else may open it so.

    Args:
        path: of the output; made if missing.
        on_landed: is told of the lines of every group once they are on the disk.
        wait_s: for how long it is waited for another writer to end.

    Raises:
        ConfigError: another process writes the file, under this name or another.
    """

    def __init__(
        self, path: Path, on_landed: Callable[[list[Landed]], None], *, wait_s: float = 0.0
    ) -> None:
        self.path = path
        self._on_landed = on_landed
        self._file = _open_locked(path, wait_s)
        _sync_folder(path.parent)
        cut_torn_line(path)
        self._end = os.fstat(self._file).st_size
        self._group = _Group()

    def add(self, position: int, line: bytes, *, failed: bool) -> None:
        """Takes in a line (without its line feed); writes the group if it is full.

        Raises:
            JaxInferError: the disk is full, or another reason why nothing can be written.
        """
        if not self._group.lines:
            self._group.since_s = time.monotonic()
        self._group.lines.append((position, failed, line + b"\n"))
        self._group.num_bytes += len(line) + 1
        if len(self._group.lines) >= GROUP_LINES or self._group.num_bytes >= GROUP_BYTES:
            self.flush()

    def flush_if_due(self) -> None:
        """Writes a group that has waited long enough."""
        if self._group.lines and time.monotonic() - self._group.since_s >= GROUP_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Writes what is there and has it on the disk when it returns; raises as `add`."""
        group, self._group = self._group, _Group()
        if not group.lines:
            return
        try:
            _write_all(self._file, b"".join(line for *_, line in group.lines))
            os.fsync(self._file)
        except OSError as error:
            self._cut_torn()
            raise JaxInferError(
                f"{self.path} cannot be written ({error}); it holds whole lines up to byte "
                f"{self._end}. Make room, then start the same command again: it goes on from there"
            ) from error
        except BaseException:
            self._cut_torn()
            raise
        landed = []
        for position, failed, line in group.lines:
            landed.append(
                Landed(position=position, failed=failed, offset=self._end, size=len(line))
            )
            self._end += len(line)
        self._on_landed(landed)

    def close(self) -> None:
        """Closes the file; lines that were not flushed are lost."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _cut_torn(self) -> None:
        os.ftruncate(self._file, self._end)  # frees room, so it works on a full disk


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Nobody else writes the file meanwhile; raises as `OutputFile`."""
    file = _open_locked(path, 0.0)
    try:
        yield
    finally:
        os.close(file)


def _open_locked(path: Path, wait_s: float) -> int:
    """A descriptor that appends to the file and has its lock, which ends with the process."""
    end_s = time.monotonic() + wait_s
    while True:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file), os.stat(path)):
                return file
            os.close(file)  # it was rewritten meanwhile: another file has its name
        except BlockingIOError:
            os.close(file)
            if time.monotonic() >= end_s:
                raise ConfigError(
                    f"another process is writing {str(path)!r}, under this name or another; wait "
                    "for it, or name another output"
                ) from None
            time.sleep(_LOCK_POLL_S)


def _write_all(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def cut_torn_line(path: Path) -> int:
    """Cuts off what stands behind the last line feed; how many bytes that were."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        end, block = size, 2**16
        while end > 0:
            start = max(0, end - block)
            file.seek(start)
            place = file.read(end - start).rfind(b"\n")
            if place >= 0:
                end = start + place + 1
                break
            end = start
        if end < size:
            file.truncate(end)
            os.fsync(file.fileno())
    return size - end


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(offset, line with its line feed) of every line."""
    offset = 0
    with path.open("rb") as file:
        for line in file:
            yield offset, line
            offset += len(line)


def rewrite(path: Path, pieces: Iterable[tuple[int, int]]) -> None:
    """Makes the file consist of `pieces` (offset, size) of what it was; all or nothing.

    Raises:
        JaxInferError: no room for a second copy; the file is as it was.
    """
    beside = half_rewritten(path)
    try:
        with path.open("rb") as old, beside.open("wb") as new:
            for offset, size in pieces:
                if old.tell() != offset:
                    old.seek(offset)
                new.write(old.read(size))
            new.flush()
            os.fsync(new.fileno())
        os.replace(beside, path)
        _sync_folder(path.parent)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise JaxInferError(
            f"{path} cannot be rewritten ({error}); it is as it was. Make room for a second copy "
            "of it, then start the same command again"
        ) from error


def half_rewritten(path: Path) -> Path:
    """The file that takes `path`'s name once it is whole; a death may leave it."""
    return path.with_name(path.name + ".rewriting")


def write_whole(path: Path, data: bytes) -> None:
    """Writes a small file, all or nothing."""
    beside = half_rewritten(path)
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
