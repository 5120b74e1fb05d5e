"""HOST. Which lines of a batch job there are and which are done, in SQLite, so that memory is flat.

The ledger is scratch: every start makes it anew from the input and the output file, and what counts
as done is what the output file holds. An output line's `id` says of what it is the result:

    batch_req_<12 hex: model, parameters, seed>_<20 hex: custom_id and input line>

so that a changed model, parameter or line is noticed, whatever became of the ledger.
"""

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxinfer.errors import ConfigError
from jaxinfer.jobs.batch_input import InputLine

ID_PREFIX = "batch_req_"
PENDING, DONE, FAILED, ELSEWHERE = range(4)  # ELSEWHERE: another shard's line
_BLOCK = 4096
_SHOWN = 5  # duplicates that a message names


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLine:
    """position: as of `InputLine`. digest: hex, of custom_id and line."""

    position: int
    custom_id: str | None
    digest: str
    state: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """A line that the output file holds: at which byte, and how many with its line feed."""

    position: int
    failed: bool
    offset: int
    size: int


def line_digest(line: InputLine, custom_id: str | None) -> str:
    """20 hex digits; a line without a readable id is told apart by its place."""
    name = f"id {custom_id}" if custom_id is not None else f"at {line.position}"
    return hashlib.sha256(name.encode() + b"\0" + line.data + b"\0%d" % line.size).hexdigest()[:20]


def output_id(job: str, digest: str) -> str:
    """The `id` of a line's output."""
    return f"{ID_PREFIX}{job}_{digest}"


def split_output_id(value: object) -> tuple[str, str] | None:
    """(job, digest) of an output's `id`; None for one that no batch job wrote."""
    if not isinstance(value, str) or not value.startswith(ID_PREFIX):
        return None
    job, _, digest = value.removeprefix(ID_PREFIX).partition("_")
    return (job, digest) if len(job) == 12 and len(digest) == 20 else None


class Ledger:
    """The lines of one job.

    Args:
        path: of the database; what is there is overwritten.
    """

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._database = sqlite3.connect(path, isolation_level=None)
        run = self._database.execute
        # Scratch needs no journal; SQLite's own cache is the only part of it in memory.
        for setting in ("journal_mode=OFF", "synchronous=OFF", "cache_size=-16384"):
            run(f"PRAGMA {setting}")
        run(
            "CREATE TABLE lines(position INTEGER PRIMARY KEY, custom_id TEXT, digest TEXT, "
            "place TEXT, state INTEGER, file INTEGER, start INTEGER, size INTEGER)"
        )

    def close(self) -> None:
        """Closes the database; the file stays."""
        self._database.close()

    def fill(self, rows: Iterable[tuple[InputLine, str | None]], shard: tuple[int, int]) -> None:
        """Takes in every line with its custom_id.

        Args:
            shard: (i, n): of every n lines the i-th is this job's.

        Raises:
            ConfigError: a custom_id that several lines have; the message names their places.
        """
        index, count = shard
        run = self._database
        run.execute("BEGIN")
        run.executemany(
            "INSERT INTO lines VALUES(?, ?, ?, ?, ?, NULL, NULL, NULL)",
            (
                (
                    line.position,
                    custom_id,
                    line_digest(line, custom_id),
                    f"{line.file}:{line.number}",
                    PENDING if line.position % count == index else ELSEWHERE,
                )
                for line, custom_id in rows
            ),
        )
        run.execute("COMMIT")
        try:
            run.execute("CREATE UNIQUE INDEX ids ON lines(custom_id)")
        except sqlite3.IntegrityError:
            raise ConfigError(self._name_duplicates()) from None
        run.execute("CREATE INDEX unreadable ON lines(digest) WHERE custom_id IS NULL")

    def find(self, custom_id: str | None, digest: str) -> LedgerLine | None:
        """The line of this id, or (without one) of this digest."""
        columns = "SELECT position, custom_id, digest, state FROM lines WHERE "
        if custom_id is not None:
            row = self._one(columns + "custom_id = ?", custom_id)
        else:
            row = self._one(columns + "custom_id IS NULL AND digest = ?", digest)
        if row is None:
            return None
        position, found, its_digest, state = row
        return LedgerLine(position=position, custom_id=found, digest=its_digest, state=state)

    def land(self, lines: Sequence[Landed], file: int = 0) -> None:
        """Notes lines that an output file holds; file: its number, where there are several."""
        run = self._database
        run.execute("BEGIN")
        run.executemany(
            "UPDATE lines SET state = ?, file = ?, start = ?, size = ? WHERE position = ?",
            [
                (FAILED if one.failed else DONE, file, one.offset, one.size, one.position)
                for one in lines
            ],
        )
        run.execute("COMMIT")

    def forget_landed(self, file: int = 0) -> None:
        """Lines that this output file holds are to be run again."""
        self._database.execute(
            "UPDATE lines SET state = ?, start = NULL WHERE state IN (?, ?) AND file = ?",
            (PENDING, DONE, FAILED, file),
        )

    def counts(self) -> tuple[int, int, int]:
        """(done, failed, pending) lines of this job."""
        found = dict(self._database.execute("SELECT state, COUNT(*) FROM lines GROUP BY state"))
        return found.get(DONE, 0), found.get(FAILED, 0), found.get(PENDING, 0)

    def pending(self) -> Iterator[tuple[int, str]]:
        """(position, digest) of lines to be run, in order; lines may land meanwhile."""
        last = -1
        while True:
            rows = self._database.execute(
                "SELECT position, digest FROM lines WHERE state = ? AND position > ? "
                "ORDER BY position LIMIT ?",
                (PENDING, last, _BLOCK),
            ).fetchall()
            if not rows:
                return
            last = rows[-1][0]
            yield from rows

    def landed(self) -> Iterator[tuple[int, int]]:
        """(offset, size) in the output file of every line there, in the order of the input."""
        last = -1
        while True:
            rows = self._database.execute(
                "SELECT position, start, size FROM lines WHERE state IN (?, ?) AND position > ? "
                "ORDER BY position LIMIT ?",
                (DONE, FAILED, last, _BLOCK),
            ).fetchall()
            if not rows:
                return
            last = rows[-1][0]
            yield from ((start, size) for _, start, size in rows)

    def landed_in_file_order(self, file: int = 0) -> Iterator[tuple[int, int]]:
        """(offset, size) of the lines that one output file holds, in its own order."""
        run = self._database
        run.execute("CREATE INDEX IF NOT EXISTS starts ON lines(file, start)")
        last = -1
        while True:
            rows = run.execute(
                "SELECT start, size FROM lines WHERE file = ? AND start > ? ORDER BY start LIMIT ?",
                (file, last, _BLOCK),
            ).fetchall()
            if not rows:
                return
            last = rows[-1][0]
            yield from rows

    def _one(self, query: str, *values: object) -> tuple | None:
        return self._database.execute(query, values).fetchone()

    def _name_duplicates(self) -> str:
        rows = self._database.execute(
            "SELECT custom_id, GROUP_CONCAT(place, ' and ') FROM "
            "(SELECT custom_id, place FROM lines ORDER BY position) "
            "WHERE custom_id IS NOT NULL GROUP BY custom_id HAVING COUNT(*) > 1 LIMIT ?",
            (_SHOWN + 1,),
        ).fetchall()
        named = [f"{custom_id!r:.80} at {places:.200}" for custom_id, places in rows[:_SHOWN]]
        more = "; there are more" if len(rows) > _SHOWN else ""
        return (
            f"custom_id is there twice: {'; '.join(named)}{more}; nothing was run, give every "
            "line an id of its own"
        )
