"""HOST. A timeline of the host loop, for Perfetto (ui.perfetto.dev) or chrome://tracing.

The file is an array of Chrome trace events, written as they come: what is kept in memory is
bounded, and a file whose process died before the end still opens in both (they allow the closing
bracket to be missing). Knows neither steps nor requests.
"""

import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, get_args

from jaxinfer.errors import ConfigError

_log = logging.getLogger(__name__)

Track = Literal["schedule", "launch", "read", "text", "device"]
_TRACK_IDS = {track: number for number, track in enumerate(get_args(Track), 1)}
_MAX_PENDING = 256  # events kept before they are written
_MAX_DELAY_S = 1.0


class Timeline:
    """Writes spans of time, each on a track, to a file that it creates or replaces.

    Times are those of `time.perf_counter`. Spans of a track follow or enclose one another, except
    on "device", which runs one program at a time: what was launched while another ran begins with
    the end of that one.

    Args:
        path: the file.

    Raises:
        ConfigError: it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            # Unbuffered: every write ends with an event, whenever the process dies.
            self._file = open(path, "wb", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise ConfigError(
                f"trace={os.fspath(path)!r}: cannot be written ({error}); "
                "give a file in a folder that exists"
            ) from error
        self._start_s = self._written_s = time.perf_counter()
        self._device_free_s = self._start_s
        self._pending: list[str] = []
        self._separator = "[\n"
        for track, number in _TRACK_IDS.items():
            self._name("thread_name", number, name=track)
            self._name("thread_sort_index", number, sort_index=number)
        self._write()

    def __enter__(self) -> "Timeline":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def span(self, name: str, track: Track, **args: int | float | str) -> Iterator[None]:
        """The time that a `with` block takes; `args` are shown beside it."""
        start_s = time.perf_counter()
        try:
            yield
        finally:
            self.event(name, track, start_s, time.perf_counter(), **args)

    def event(
        self, name: str, track: Track, start_s: float, end_s: float, **args: int | float | str
    ) -> None:
        """A span whose times are known."""
        if self._file.closed:
            return
        if track == "device":
            start_s = max(start_s, self._device_free_s)
            self._device_free_s = end_s = max(start_s, end_s)
        self._append(
            {
                "name": name,
                "ph": "X",
                "pid": 1,
                "tid": _TRACK_IDS[track],
                "ts": round((start_s - self._start_s) * 1e6, 3),
                "dur": round((end_s - start_s) * 1e6, 3),
                "args": args,
            }
        )
        is_late = time.perf_counter() - self._written_s > _MAX_DELAY_S
        if is_late or len(self._pending) >= _MAX_PENDING:
            self._write()

    def close(self) -> None:
        """Writes what is left and the end of the array; later events are ignored."""
        if not self._file.closed:
            self._write(end="\n]\n")
        self._file.close()

    def _name(self, kind: str, track_id: int, **args: int | str) -> None:
        self._append({"name": kind, "ph": "M", "pid": 1, "tid": track_id, "args": args})

    def _append(self, event: dict[str, Any]) -> None:
        self._pending.append(self._separator + json.dumps(event))
        self._separator = ",\n"

    def _write(self, end: str = "") -> None:
        text = "".join(self._pending) + end
        self._pending.clear()
        self._written_s = time.perf_counter()
        try:
            self._write_all(text.encode())
        except OSError as error:  # a full disk must not end the requests
            _log.warning("trace: %s cannot be written, it ends here (%s)", self._file.name, error)
            self._file.close()

    def _write_all(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) :]


class NoTimeline:
    """A timeline that nobody asked for: the same verbs, and nothing is written."""

    __slots__ = ()

    def __enter__(self) -> "NoTimeline":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def span(
        self, name: str, track: Track, **args: int | float | str
    ) -> AbstractContextManager[None]:
        """Does nothing."""
        return _NOTHING

    def event(
        self, name: str, track: Track, start_s: float, end_s: float, **args: int | float | str
    ) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


_NOTHING = nullcontext()


def open_timeline(path: str | os.PathLike[str] | None) -> Timeline | NoTimeline:
    """A timeline in `path`, or for None one that does nothing.

    Raises:
        ConfigError: the file cannot be written.
    """
    return NoTimeline() if path is None else Timeline(path)
