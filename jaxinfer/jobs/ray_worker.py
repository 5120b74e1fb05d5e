"""JOINT. What runs inside a Ray actor: one engine, one part of the lines at a time.

Knows batch lines and output files; nothing of Ray, so that a part is run and tested without it.
"""

import hashlib
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.errors import ConfigError, JaxInferError
from jaxinfer.jobs import session
from jaxinfer.jobs.batch_file import OutputFile, read_lines
from jaxinfer.jobs.batch_fingerprint import engine_fingerprint
from jaxinfer.jobs.batch_input import InputLine
from jaxinfer.jobs.batch_ledger import line_digest, output_id
from jaxinfer.jobs.batch_lines import LineRunner, PromptMaker, failure
from jaxinfer.jobs.batch_loop import Ready, Stop, run_requests
from jaxinfer.jobs.batch_request import (
    DecodedLine,
    LineError,
    decode_line,
    read_request,
    sampling_params,
)
from jaxinfer.jobs.batch_settings import BatchSettings
from jaxinfer.jobs.batch_statistics import engine_facts

if TYPE_CHECKING:
    from jaxinfer.llm import LLM

PROMPT_COLUMNS = ("prompt", "prompt_token_ids", "messages")
RESULT_COLUMNS = ("generated_text", "finish_reason", "error")
_LOCK_WAIT_S = 120.0  # for a worker that is given up but has not ended


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSetup:
    """What an actor needs to know. folder: where parts lie. options: of the engine.

    model: where it is, for every node. job: the job's fingerprint. model_digest: of the model's
    files.
    """

    ask: BatchSettings
    model: str
    options: Mapping[str, Any]
    folder: Path
    job: str
    model_digest: str
    single_file: bool

    def open_model(self) -> "LLM":
        """The model, ready to generate."""
        return session.open_llm(self.model, **self.options)


class PartWorker:
    """Runs parts; called by Ray with one row a part."""

    def __init__(self, setup: WorkerSetup) -> None:
        self._setup = setup
        self._llm = setup.open_model()
        self._name = uuid.uuid4().hex

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Runs the lines of a part that its file does not hold yet.

        Args:
            row: "part" is the file's name, "lines" are `pack_lines`, "digest" is `part_digest` of
                them as the job found them.

        Returns:
            "done" and "failed" lines of the part, "statistics" of those that were run now as
            JSON, and of this "worker" its "engine" facts so far, as JSON.

        Raises:
            JaxInferError: the lines are others now, or the part cannot be written.
        """
        setup = self._setup
        path = setup.folder / str(row["part"])
        lines = [(line, _digest(line, setup)) for line in unpack_lines(str(row["lines"]))]
        if part_digest(digest for _, digest in lines) != row["digest"]:
            raise JaxInferError(
                f"the input lines of {path.name} changed while the job was running, or some are "
                "gone; leave the input as it is until the job has ended, then start it again"
            )
        with closing(OutputFile(path, lambda landed: None, wait_s=_LOCK_WAIT_S)) as file:
            held = _held(path)
            names = [output_id(setup.job, digest) for _, digest in lines]
            kept = [held[name] for name in names if name in held]
            left = [pair for pair, name in zip(lines, names, strict=True) if name not in held]
            runner = self._run(left, file)
        return {
            "done": runner.num_done + kept.count(False),
            "failed": runner.num_failed + kept.count(True),
            "statistics": json.dumps(runner.statistics.state()),
            "worker": self._name,
            "engine": json.dumps(engine_facts(self._llm.get_metrics())),
        }

    def _run(self, lines: Sequence[tuple[InputLine, str]], file: OutputFile) -> LineRunner:
        """Runs the lines; what has ended is in the file even if this raises."""
        setup = self._setup
        runner = LineRunner(
            self._llm,
            setup.ask,
            job=setup.job,
            engine=engine_fingerprint(
                setup.model_digest,
                self._llm.geometry,
                self._llm.engine_config,
                session.device_name(),
            ),
            single_file=setup.single_file,
            strict=bool(setup.options.get("strict")),
            add_line=lambda position, line, failed: file.add(position, line, failed=failed),
        )
        try:
            with closing(run_requests(self._llm, runner.requests(iter(lines)), Stop())) as results:
                for result in results:
                    if result is not None:
                        runner.take_result(*result)
                    file.flush_if_due()
        finally:
            file.flush()
        return runner


def path_on_every_node(path: str | Path) -> str:
    """A path of this machine's in full, for workers start in folders of their own."""
    own = Path(path).expanduser()
    return str(own.resolve()) if own.exists() else str(path)


def options_on_every_node(engine: Mapping[str, Any] | None) -> dict[str, Any]:
    """The engine's options as workers get them."""
    options = {"show_progress": False, **(engine or {})}
    if isinstance(options.get("tokenizer"), str | Path):
        options["tokenizer"] = path_on_every_node(options["tokenizer"])
    drafts = options.get("speculative_config")
    if isinstance(drafts, Mapping) and isinstance(drafts.get("model"), str | Path):
        options["speculative_config"] = {**drafts, "model": path_on_every_node(drafts["model"])}
    return options


def part_digest(digests: Iterable[str]) -> str:
    """Twenty hex digits of the digests of a part's lines."""
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()[:20]


def pack_lines(lines: Iterator[InputLine]) -> str:
    """Lines as one text, whatever bytes they hold."""
    return json.dumps(
        [
            [one.position, one.file, one.number, one.data.decode("latin-1"), one.size]
            for one in lines
        ]
    )


def unpack_lines(text: str) -> list[InputLine]:
    """What `pack_lines` was given."""
    return [
        InputLine(
            position=position, file=file, number=number, data=data.encode("latin-1"), size=size
        )
        for position, file, number, data, size in json.loads(text)
    ]


def _digest(line: InputLine, setup: WorkerSetup) -> str:
    return line_digest(line, decode_line(line, single_file=setup.single_file).custom_id)


def _held(path: Path) -> dict[str, bool]:
    """Ids of the lines that a part's file holds, and whether they are errors.

    A worker that died may have left them; opening the file has cut a line that was torn.
    """
    rows = (json.loads(line) for _, line in read_lines(path))
    return {row["id"]: row["error"] is not None for row in rows}


class RowWorker:
    """Adds completions to rows of any table; called by Ray with a pyarrow table."""

    def __init__(
        self, model: str, options: Mapping[str, Any], params: Mapping[str, Any], seed: int
    ) -> None:
        self._llm = session.open_llm(model, **options)
        self._params = dict(params)
        self._seed = seed
        defaults = self._llm.get_default_sampling_params()
        self._base = {one.name: getattr(defaults, one.name) for one in fields(defaults) if one.init}

    def __call__(self, table: Any) -> Any:
        """The table with the columns of `RESULT_COLUMNS`."""
        rows = table.to_pylist()
        results: list[dict[str, Any]] = [{} for _ in rows]
        prompts = PromptMaker(self._llm)
        ready = (
            one
            for place, row in enumerate(rows)
            for one in self._ready(place, row, results, prompts)
        )
        with closing(run_requests(self._llm, ready, Stop())) as came:
            for one in came:
                if one is not None:
                    request, output = one
                    results[request.tag] = _row_result(output)
        for name in RESULT_COLUMNS:
            table = table.append_column(name, _text_column([one.get(name) for one in results]))
        return table

    def _ready(
        self, place: int, row: Mapping[str, Any], results: list, prompts: PromptMaker
    ) -> Iterator[Ready]:
        known = (*PROMPT_COLUMNS, *(one.name for one in fields(SamplingParams) if one.init))
        value = {name: row[name] for name in known if row.get(name) is not None}
        custom_id = row.get("custom_id")
        if not isinstance(custom_id, str) or not custom_id:
            prompt = json.dumps([value.get(name) for name in PROMPT_COLUMNS], default=repr)
            custom_id = hashlib.sha256(prompt.encode()).hexdigest()
        try:
            request = read_request(DecodedLine(custom_id=custom_id, value=value), None)
            params = sampling_params(request, self._base, self._params, self._seed)
            refuse_what_no_column_shows(params)
        except (LineError, ConfigError) as error:
            results[place] = {"error": str(error)}
            return
        yield Ready(
            prompt=lambda: prompts.prompt(request),
            params=params,
            options=request.options,
            key=request.sort_key,
            num_bytes=len(request.sort_key),
            tag=place,
        )


def refuse_what_no_column_shows(params: SamplingParams) -> None:
    """Raises ConfigError for more than one completion and for log-probabilities."""
    for name, nothing in (("n", 1), ("logprobs", None), ("prompt_logprobs", None)):
        value = getattr(params, name)
        if value != nothing:
            raise ConfigError(
                f"{name}={value!r}: a row gets one text and no log-probabilities; leave it out, or "
                "write the rows to a file for ray_batch"
            )


def _row_result(output: Any) -> dict[str, Any]:
    error = failure(output)
    if error is not None:
        return {"error": str(error)}
    (first, *_) = output.outputs
    return {"generated_text": first.text, "finish_reason": first.finish_reason}


def _text_column(values: list[str | None]) -> Any:
    import pyarrow  # type: ignore[reportMissingImports]

    return pyarrow.array(values, pyarrow.string())
