"""JOINT. What runs inside a Ray actor: one engine, one part of the lines at a time.

Knows batch lines and output files; nothing of Ray, so that a part is run and tested without it.
"""

import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.jobs import session
from jaxinfer.jobs.batch_file import OutputFile, cut_torn_line, read_lines
from jaxinfer.jobs.batch_fingerprint import engine_fingerprint
from jaxinfer.jobs.batch_input import InputLine
from jaxinfer.jobs.batch_ledger import line_digest, output_id
from jaxinfer.jobs.batch_lines import LineRunner, PromptMaker
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


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSetup:
    """What an actor needs to know. folder: where parts lie. options: of the engine.

    job: the job's fingerprint. model_digest: of the model's files.
    """

    ask: BatchSettings
    options: Mapping[str, Any]
    folder: Path
    job: str
    model_digest: str
    single_file: bool

    def open_model(self) -> "LLM":
        """The model, ready to generate."""
        return session.open_llm(self.ask.model, **self.options)


class PartWorker:
    """Runs parts; called by Ray with one row a part."""

    def __init__(self, setup: WorkerSetup) -> None:
        self._setup = setup
        self._llm = setup.open_model()
        self._name = uuid.uuid4().hex

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Runs the lines of a part that its file does not hold yet.

        Args:
            row: "part" is the file's name, "lines" are `pack_lines`.

        Returns:
            "done" and "failed" lines of the part, "statistics" of those that were run now as
            JSON, and of this "worker" its "engine" facts so far, as JSON.
        """
        setup = self._setup
        path = setup.folder / str(row["part"])
        lines = [(line, _digest(line, setup)) for line in unpack_lines(str(row["lines"]))]
        held = _held(path)
        left = [pair for pair in lines if output_id(setup.job, pair[1]) not in held]
        kept = [held[name] for _, digest in lines if (name := output_id(setup.job, digest)) in held]
        with closing(OutputFile(path, lambda landed: None)) as file:
            runner = LineRunner(
                self._llm,
                setup.ask,
                job=setup.job,
                engine=engine_fingerprint(setup.model_digest, self._llm.geometry),
                single_file=setup.single_file,
                strict=bool(setup.options.get("strict")),
                add_line=lambda position, line, failed: file.add(position, line, failed=failed),
            )
            with closing(run_requests(self._llm, runner.requests(iter(left)), Stop())) as results:
                for result in results:
                    if result is not None:
                        runner.take_result(*result)
                    file.flush_if_due()
            file.flush()
        return {
            "part": str(row["part"]),
            "done": runner.num_done + kept.count(False),
            "failed": runner.num_failed + kept.count(True),
            "statistics": json.dumps(runner.statistics.state()),
            "worker": self._name,
            "engine": json.dumps(engine_facts(self._llm.get_metrics())),
        }


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

    A worker that died may have left them, and a line that is torn.
    """
    if not path.exists():
        return {}
    cut_torn_line(path)
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
        except LineError as error:
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


def _row_result(output: Any) -> dict[str, Any]:
    if output.error is not None:
        return {"error": output.error}
    (first, *_) = output.outputs
    return {"generated_text": first.text, "finish_reason": first.finish_reason}


def _text_column(values: list[str | None]) -> Any:
    import pyarrow  # type: ignore[reportMissingImports]

    return pyarrow.array(values, pyarrow.string())
