"""HOST. The lines of a batch job: a file, a .gz, a folder of shards, Parquet, or standard input.

Knows files and bytes, not what a line asks for. What can be read only once is spooled to a file
first, so that every input can be gone through again; no more than one line is in memory.
"""

import gzip
import json
import shutil
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

from jaxinfer.errors import ConfigError

MAX_LINE_BYTES = 4 * 2**20
_HEAD_BYTES = 4096  # kept of a line that is too long, for its custom_id
_BOM = b"\xef\xbb\xbf"
_GZIP_MAGIC = b"\x1f\x8b"
_PARQUET_MAGIC = b"PAR1"
_PARQUET_ROWS = 256
SHARD_ENDINGS = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz", ".parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLine:
    """One line that is not blank.

    position: its place among such lines of the whole input, from 0.
    file: the file's name; number: the physical line there, from 1 (of Parquet: the row); offset:
        of its first byte there, once unpacked (of Parquet: 0).
    data: without line end and byte order mark; of a line over the limit only its beginning.
    size: bytes of the whole line.
    """

    position: int
    file: str
    number: int
    data: bytes
    size: int
    offset: int = 0

    @property
    def is_cut(self) -> bool:
        """True for a line over the limit."""
        return self.size > len(self.data)


class BatchInput:
    """An input that can be gone through any number of times.

    Args:
        files: in the order in which they are read.
        max_line_bytes: a longer line is not read into memory.
        is_folder: whether the files are a folder's, be there one or many.
    """

    def __init__(
        self, files: list[Path], *, max_line_bytes: int = MAX_LINE_BYTES, is_folder: bool = False
    ) -> None:
        self.files = files
        self.is_folder = is_folder
        self.max_line_bytes = max_line_bytes

    def lines(self) -> Iterator[InputLine]:
        """Every line but blank ones.

        Raises:
            ConfigError: a file that cannot be read to its end.
        """
        position = 0
        for path in self.files:
            for line in self.lines_of(path, position=position):
                yield line
                position += 1

    def lines_of(
        self, path: Path, *, position: int, number: int = 1, offset: int = 0
    ) -> Iterator[InputLine]:
        """Lines of one file from a place on.

        Args:
            position, number, offset: of the first line that is read.
        """
        try:
            for number, start, data, size in self._numbered(path, number, offset):  # noqa: B020
                yield InputLine(
                    position=position,
                    file=path.name,
                    number=number,
                    data=data,
                    size=size,
                    offset=start,
                )
                position += 1
        except (OSError, EOFError, zlib.error) as error:
            raise ConfigError(
                f"{path} cannot be read to its end ({error}); check the file, it may have "
                "been copied in part"
            ) from error

    def can_seek(self, path: Path) -> bool:
        """Whether reading from an offset on takes no longer than reading from the start."""
        if path.suffix == ".parquet":
            return False
        with path.open("rb") as file:
            return file.read(2) != _GZIP_MAGIC

    def _numbered(
        self, path: Path, first: int, offset: int
    ) -> Iterator[tuple[int, int, bytes, int]]:
        """(number, offset, data, size) of every line that is not blank."""
        if path.suffix == ".parquet":
            for number, data in enumerate(_parquet_rows(path), 1):
                if number >= first:
                    size = len(data)
                    if size > self.max_line_bytes:
                        data = data[: min(_HEAD_BYTES, self.max_line_bytes)]
                    yield number, 0, data, size
            return
        with path.open("rb") as raw, _decompressed(raw) as file:
            file.seek(offset)
            for number, (data, size) in enumerate(_raw_lines(file, self.max_line_bytes), first):
                start, offset = offset, offset + size
                data, size = _bare(data, size)
                if data:
                    yield number, start, data, size


def open_input(
    source: str | Path, spool: Path, *, max_line_bytes: int = MAX_LINE_BYTES
) -> BatchInput:
    """The input that `source` names.

    Args:
        source: a file, a folder of shards, or "-" for standard input.
        spool: gets the bytes of standard input or of a pipe.

    Raises:
        ConfigError: nothing there, or nothing that can be read.
    """
    path = Path(source)
    if str(source) == "-":
        _spool(sys.stdin.buffer, spool)
        files = [spool]
    elif path.is_dir():
        files = _shards(path)
    elif path.is_file():
        files = [path]
    elif path.exists():  # a pipe
        with path.open("rb") as file:
            _spool(file, spool)
        files = [spool]
    else:
        raise ConfigError(
            f"input={str(source)!r} was not found; name a .jsonl file (.gz too), a .parquet file, "
            "a folder of them, or - for standard input"
        )
    for file in files:
        _refuse_unnamed_parquet(file, str(source))
    return BatchInput(files, max_line_bytes=max_line_bytes, is_folder=path.is_dir())


def _refuse_unnamed_parquet(file: Path, source: str) -> None:
    if file.suffix == ".parquet":
        return
    with file.open("rb") as opened:
        if opened.read(len(_PARQUET_MAGIC)) == _PARQUET_MAGIC:
            raise ConfigError(
                f"input={source!r} is Parquet, which is read from a file whose name ends with "
                f".parquet; give {'the file itself' if source == '-' else 'it such a name'}"
            )


def _shards(folder: Path) -> list[Path]:
    files = [
        path
        for path in sorted(folder.iterdir())
        if path.is_file() and not path.name.startswith(".") and path.name.endswith(SHARD_ENDINGS)
    ]
    if not files:
        raise ConfigError(
            f"input={str(folder)!r} is a folder without shards; it must hold files that end with "
            f"{', '.join(SHARD_ENDINGS)}"
        )
    return files


def _spool(stream: IO[bytes], spool: Path) -> None:
    with spool.open("wb") as file:
        shutil.copyfileobj(stream, file, 2**20)


def _decompressed(file: BufferedReader) -> BufferedReader | gzip.GzipFile:
    is_gzip = file.peek(2)[:2] == _GZIP_MAGIC
    return gzip.GzipFile(fileobj=file) if is_gzip else file


def _raw_lines(file: BufferedReader | gzip.GzipFile, limit: int) -> Iterator[tuple[bytes, int]]:
    """(line with its end, or its beginning if too long; bytes of the whole line)."""
    while data := file.readline(limit + 1):
        size = len(data)
        if size > limit and not data.endswith(b"\n"):
            data = data[: min(_HEAD_BYTES, limit)]
            while rest := file.readline(2**20):
                size += len(rest)
                if rest.endswith(b"\n"):
                    break
        yield data, size


def _bare(data: bytes, size: int) -> tuple[bytes, int]:
    """A line without byte order mark and line end; empty if it is blank.

    Files that were joined have a mark in their midst; a mark alone on a line is blank too.
    """
    whole = size == len(data)
    while data.startswith(_BOM):
        data = data[len(_BOM) :]
    if whole:
        data = data.rstrip(b"\r\n") if data.strip() else b""
    return data, len(data) if whole else size


def _parquet_rows(path: Path) -> Iterator[bytes]:
    """Rows as JSON lines; nulls are left out, as a field that was never there.

    Bytes that are no UTF-8 stay as they are, so that the line is refused as one of a text file is.
    """
    try:
        from pyarrow import ArrowException, parquet  # type: ignore[reportMissingImports]
    except ImportError as error:
        raise ConfigError(
            f"{path}: reading Parquet needs pyarrow; install it with: pip install "
            "'jaxinfer[parquet]'"
        ) from error
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_PARQUET_ROWS):
                for row in batch.to_pylist():
                    text = json.dumps(_without_nulls(row), default=_as_text, ensure_ascii=False)
                    yield text.encode("utf-8", "surrogateescape")
    except (ValueError, ArrowException) as error:  # damaged files, types that it cannot read
        raise ConfigError(f"{path} is no Parquet file that can be read ({error})") from error


def _as_text(value: Any) -> str:
    """Of a binary column its text; of dates and decimals what Python prints of them."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return str(value)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_without_nulls(one) for one in value]
    return value
