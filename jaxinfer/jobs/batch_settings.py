"""HOST. What a batch job was asked, as one checked record, and what it came to, as another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.errors import ConfigError
from jaxinfer.jobs.batch_input import MAX_LINE_BYTES
from jaxinfer.jobs.batch_output import EXTRAS
from jaxinfer.jobs.batch_progress import PROGRESS_FORMS

EXIT_OK, EXIT_JOB_FAILED, EXIT_LINES_FAILED, EXIT_INTERRUPTED = 0, 1, 2, 130


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """A batch job.

    source: file, folder of shards, or "-". output: file that is appended to.
    model: the name that bodies carry; served_model_name: further names that lines may use.
    params: fields of `SamplingParams` for every line that does not set them.
    seed: from which lines without a seed get theirs.
    include: what outputs carry beside OpenAI's fields: "token_ids", "seed", "fingerprint",
        "metrics".
    shard: (i, n): of every n lines the i-th, counted from 0; the output's name gets the numbers.
    ordered: the finished output is in the order of the input.
    force: an output of another model, other parameters or another input is brought up to date.
    retry_errors: lines with an error are run again.
    max_line_bytes: a longer line is an error line, never in memory.
    progress: "bar", "json" or "none". metrics_port: serves Prometheus metrics; None does not.
    """

    source: str
    output: Path
    model: str
    served_model_name: tuple[str, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    include: tuple[str, ...] = ()
    shard: tuple[int, int] = (0, 1)
    ordered: bool = False
    force: bool = False
    retry_errors: bool = False
    max_line_bytes: int = MAX_LINE_BYTES
    progress: str = "none"
    metrics_port: int | None = None

    def __post_init__(self) -> None:
        index, count = self.shard
        if not 0 <= index < count:
            raise ConfigError(
                f"shard={index}/{count} must be i/n with i from 0 to n - 1, such as 0/4 to 3/4"
            )
        for one in self.include:
            if one not in EXTRAS:
                raise ConfigError(f"include={one!r} must be one of {', '.join(map(repr, EXTRAS))}")
        if self.progress not in PROGRESS_FORMS:
            raise ConfigError(
                f"progress={self.progress!r} must be one of {', '.join(map(repr, PROGRESS_FORMS))}"
            )
        for name, value, least in (
            ("seed", self.seed, 0),
            ("max_line_bytes", self.max_line_bytes, 1024),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"{name}={value!r} must be an int of at least {least}")
        self._check_output()
        SamplingParams(**self.params)  # a wrong value ends the job before it begins

    def _check_output(self) -> None:
        """A link is followed once and for all: its file may be rewritten beside where it lies."""
        if self.output.exists() and not (self.output.is_file() or self.output.is_dir()):
            raise ConfigError(
                f"output={str(self.output)!r} is no regular file, and a job that is resumed reads "
                "what it wrote; name a file"
            )
        object.__setattr__(self, "output", self.output.resolve())
        source = Path(self.source)
        if self.output.is_dir():
            raise ConfigError(f"output={str(self.output)!r} is a folder; name a file")
        if not self.output.parent.is_dir():
            raise ConfigError(
                f"output={str(self.output)!r}: there is no folder {str(self.output.parent)!r}; "
                "make it first"
            )
        if source.is_dir() and self.output.parent.resolve() == source.resolve():
            raise ConfigError(
                f"output={str(self.output)!r} would lie among the input's shards; write it "
                "to another folder"
            )
        if source.exists() and self.output.exists() and source.samefile(self.output):
            raise ConfigError(f"output={str(self.output)!r} is the input; name another file")

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names that a line may call the model by."""
        return (self.model, *self.served_model_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSummary:
    """What a job came to.

    output: the file. done, failed, total: lines, those of earlier runs too; total - done - failed
    were left by an interrupt. interrupted: by Ctrl-C or a request to end.
    run: what this run measured: seconds, tokens, rates, percentiles of TTFT, TPOT, end to end and
        lengths. engine: load and compile seconds, prefix hits, peak of the KV cache; empty where
        no line had to be run.
    """

    output: Path
    done: int
    failed: int
    total: int
    interrupted: bool
    fingerprint: str
    run: Mapping[str, Any]
    engine: Mapping[str, float]

    @property
    def exit_code(self) -> int:
        """0 all lines good, 2 some failed, 130 interrupted, 1 lines are missing."""
        if self.interrupted:
            return EXIT_INTERRUPTED
        if self.done + self.failed < self.total:
            return EXIT_JOB_FAILED
        return EXIT_LINES_FAILED if self.failed else EXIT_OK

    def as_json(self) -> dict[str, Any]:
        """The summary as JSON values."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {**values, "output": str(self.output), "exit_code": self.exit_code}


def as_names(given: str | Sequence[str]) -> tuple[str, ...]:
    """One name or several, as several."""
    return (given,) if isinstance(given, str) else tuple(given)


def params_of_every_line(params: SamplingParams | Mapping[str, Any] | None) -> dict[str, Any]:
    """Fields that a job sets for its lines; of a `SamplingParams` all but a seed that is None."""
    if params is None:
        return {}
    if isinstance(params, Mapping):
        return dict(params)
    given = {one.name: getattr(params, one.name) for one in fields(params) if one.init}
    return {name: value for name, value in given.items() if (name, value) != ("seed", None)}


def parse_shard(text: str) -> tuple[int, int]:
    """Example: "0/4" is (0, 4).

    Raises:
        ConfigError: another form.
    """
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal()):
        raise ConfigError(f"shard={text!r} must be i/n, such as 0/4")
    return int(index), int(count)


def shard_path(output: Path, shard: tuple[int, int]) -> Path:
    """Example: out.jsonl of shard (1, 4) is out-00001-of-00004.jsonl."""
    index, count = shard
    if count == 1:
        return output
    return output.with_name(f"{output.stem}-{index:05d}-of-{count:05d}{output.suffix}")
