"""HOST. What surrounds a batch job: its scratch folder and lock, and errors of the system.

Knows names of files; what is in them, the job knows.
"""

import fcntl
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from jaxinfer.errors import ConfigError, JaxInferError

LEDGER, SPOOL = "ledger.sqlite", "input.jsonl"
_LOCK = "lock"
_SCRATCH = (LEDGER, f"{LEDGER}-journal", SPOOL, _LOCK)  # what a job leaves in its folder


@contextmanager
def storage_errors(output: Path) -> Iterator[None]:
    """Errors of the disk (full, read-only, …) as one message; the output holds whole lines."""
    try:
        yield
    except BrokenPipeError:  # whoever read the progress has gone; the disk is well
        raise
    except (OSError, sqlite3.Error) as error:
        raise JaxInferError(
            f"the job of {str(output)!r} was ended by an error of the system ({error}); make room "
            "or check permissions, then start the same command again: it goes on from there"
        ) from error


@contextmanager
def job_folder(output: Path) -> Iterator[Path]:
    """Scratch beside the output while the job runs; a second job of the same output is refused."""
    folder = output.with_name(output.name + ".job")
    folder.mkdir(exist_ok=True)
    with (folder / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another process is writing {str(output)!r}; wait for it, or name another output"
            ) from None
        try:
            yield folder
        finally:
            for name in _SCRATCH:
                (folder / name).unlink(missing_ok=True)
            with suppress(OSError):  # there is something in it that is not ours
                folder.rmdir()
