"""HOST. What of an output file belongs to the job that is starting, and what becomes of the rest.

Knows the ledger and the output file; runs nothing.
"""

import json
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxinfer.errors import ConfigError
from jaxinfer.jobs.batch_file import cut_torn_line, half_rewritten, locked, read_lines, rewrite
from jaxinfer.jobs.batch_ledger import (
    DONE,
    ELSEWHERE,
    FAILED,
    ID_PREFIX,
    Landed,
    Ledger,
    split_output_id,
)

_log = logging.getLogger("jaxinfer")
_SHOWN = 5
_LANDED_BLOCK = 1024


@dataclass(slots=True)
class _Reading:
    """What was found in an output file. changed: what no longer belongs, for people."""

    num_kept: int = 0
    num_dropped: int = 0
    num_changed: int = 0
    changed: list[str] = field(default_factory=list)
    drops_something: bool = False

    def note_changed(self, reason: str) -> None:
        self.num_changed += 1
        if len(self.changed) < _SHOWN and reason not in self.changed:
            self.changed.append(reason)


def resume(
    path: Path, ledger: Ledger, job: str, *, force: bool, retry_errors: bool, file: int = 0
) -> int:
    """Repairs the output file and notes in the ledger what it holds of this job.

    Args:
        job: the job's fingerprint.
        force: lines of another model, other parameters or changed input are dropped and run again.
        retry_errors: lines with an error are dropped and run again.
        file: number of the output file, where a job has several.

    Returns:
        How many lines the file holds.

    Raises:
        ConfigError: the file is no output of a batch job, or of a changed one without `force`, or
            another process writes it.
    """
    half_rewritten(path).unlink(missing_ok=True)
    if not path.exists():
        return 0
    with locked(path):
        return _repair(path, ledger, job, force=force, retry_errors=retry_errors, file=file)


def _repair(
    path: Path, ledger: Ledger, job: str, *, force: bool, retry_errors: bool, file: int
) -> int:
    _require_output(path)
    torn = cut_torn_line(path)
    if torn:
        _log.warning("%s: %d bytes of a line that was cut off are dropped", path, torn)
    reading = _read(path, ledger, job, file, retry_errors=retry_errors)
    if reading.num_changed and not force:
        raise ConfigError(
            f"{path} holds {reading.num_changed} lines that are not this job's: "
            f"{'; '.join(reading.changed)}. Nothing was run; start the job as it was, write to "
            "another file, or drop these lines and run theirs again with --force"
        )
    if reading.drops_something:
        dropped = reading.num_dropped + reading.num_changed
        _log.warning("%s: %d lines are dropped and run again", path, dropped)
        rewrite(path, ledger.landed_in_file_order(file))
        ledger.forget_landed(file)
        reading = _read(path, ledger, job, file, retry_errors=False)
    return reading.num_kept


def _require_output(path: Path) -> None:
    """Refuses a file that a batch job cannot have written: its lines would be lost."""
    start = b'{"id": "' + ID_PREFIX.encode()
    with path.open("rb") as file:
        head = file.read(len(start))
    if head != start[: len(head)]:
        raise ConfigError(
            f"output={str(path)!r} exists and is no output of a batch job; name another file"
        )


def _read(path: Path, ledger: Ledger, job: str, file: int, *, retry_errors: bool) -> _Reading:
    reading, landed = _Reading(), list[Landed]()
    seen_in_block = set[int]()
    for offset, line in read_lines(path):
        found = _place(line, ledger, job, reading, retry_errors=retry_errors)
        if found is None or found[0] in seen_in_block:
            reading.num_dropped += int(found is not None)
            reading.drops_something = True
            continue
        position, failed = found
        reading.num_kept += 1
        seen_in_block.add(position)
        landed.append(Landed(position=position, failed=failed, offset=offset, size=len(line)))
        if len(landed) >= _LANDED_BLOCK:
            ledger.land(landed, file)
            landed.clear()
            seen_in_block.clear()
    ledger.land(landed, file)
    return reading


def _place(
    line: bytes, ledger: Ledger, job: str, reading: _Reading, *, retry_errors: bool
) -> tuple[int, bool] | None:
    """(position, failed) of an output line that is this job's; None for one to be dropped."""
    value = _json_object(line)
    identity = split_output_id(value.get("id"))
    if identity is None:
        reading.num_dropped += 1
        return None
    its_job, its_digest = identity
    custom_id, failed = value.get("custom_id"), value.get("error") is not None
    entry = ledger.find(custom_id if isinstance(custom_id, str) else None, its_digest)
    name = f"custom_id {custom_id!r:.80}"
    if its_job != job:
        reading.note_changed("the model, its settings, the parameters or the seed are others now")
    elif failed and retry_errors:
        reading.num_dropped += 1  # whatever its line is now, it is tried again
    elif entry is None:
        reading.note_changed(f"{name} is not in the input any more")
    elif entry.state == ELSEWHERE:
        reading.note_changed(f"{name} belongs to another shard")
    elif entry.digest != its_digest:
        reading.note_changed(f"the input line of {name} is another now")
    elif entry.state in (DONE, FAILED):
        reading.num_dropped += 1  # there twice
    else:
        return entry.position, failed
    return None


def _json_object(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}  # what a crash of the machine may leave in place of a line
    return value if isinstance(value, dict) else {}
