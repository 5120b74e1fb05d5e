"""JOINT. Batch jobs on a Ray cluster: Ray Data hands parts of the input to engines in actors.

    input ── scan ──▶ parts ──▶ Ray Data: read ──▶ actor: engine ──▶ FOLDER/part-….jsonl
                        │                     ├──▶ actor: engine ──▶ FOLDER/part-….jsonl
                        └ lines that no file holds yet

Knows how a job is cut into parts and what is in the folder; where and when a part runs, and that an
actor that died is replaced, is Ray's. Input, folder and model must be reachable from every node.
"""

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.errors import ConfigError, JaxInferError
from jaxinfer.jobs.batch import check_options, write_summary
from jaxinfer.jobs.batch_fingerprint import draft_of, job_fingerprint, model_fingerprint
from jaxinfer.jobs.batch_folder import LEDGER, SPOOL, job_folder, storage_errors
from jaxinfer.jobs.batch_input import BatchInput, InputLine, open_input
from jaxinfer.jobs.batch_ledger import Ledger
from jaxinfer.jobs.batch_lines import SHORTER_INPUT
from jaxinfer.jobs.batch_progress import Progress, ProgressReporter, measure_progress
from jaxinfer.jobs.batch_request import decode_line
from jaxinfer.jobs.batch_resume import resume
from jaxinfer.jobs.batch_settings import BatchSettings, BatchSummary, as_names, params_of_every_line
from jaxinfer.jobs.batch_statistics import Statistics, joined_facts
from jaxinfer.jobs.ray_worker import (
    RESULT_COLUMNS,
    PartWorker,
    RowWorker,
    WorkerSetup,
    options_on_every_node,
    pack_lines,
    part_digest,
    path_on_every_node,
    refuse_what_no_column_shows,
)

PART_LINES = 512
_MAX_PASSES = 64  # through a file in which no place can be sought


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Lines of one file that follow each other and go into one output file.

    position, number, offset: of the first line, as in `InputLine`. pending: which of the lines are
    to be run, as runs: (place of the first, counted from the part's first line; how many). digest:
    of those lines.
    """

    name: str
    path: str
    position: int
    number: int
    offset: int
    pending: tuple[tuple[int, int], ...]
    digest: str


def ray_batch(
    source: str | Path,
    folder: str | Path,
    model: str | Path,
    *,
    num_engines: int = 1,
    gpus_per_engine: float = 0,
    cpus_per_engine: float = 1,
    part_lines: int = PART_LINES,
    params: SamplingParams | Mapping[str, Any] | None = None,
    engine: Mapping[str, Any] | None = None,
    include: Sequence[str] = (),
    served_model_name: str | Sequence[str] = (),
    **settings: Any,
) -> BatchSummary:
    """Runs a file of requests on the Ray cluster that this process is connected to, or a local one.

    Started again with the same arguments it goes on where it ended.

    Args:
        source: as of `run_batch`. folder: gets `part-….jsonl`, in the same form as `run_batch`'s.
        model: as of `run_batch`; every node must have it.
        num_engines: one an actor. gpus_per_engine, cpus_per_engine: what Ray keeps for each.
        part_lines: lines that an engine is handed at once.
        settings: as of `run_batch`, as are params, engine, include and served_model_name; but for
            `shard`, `ordered` and `metrics_port`.

    Raises:
        ConfigError: ray is not installed. JaxInferError: the job cannot begin or go on.
    """
    ray_data = _import_ray()
    _check_resources(num_engines, gpus_per_engine, cpus_per_engine)
    for name in sorted({"shard", "ordered", "metrics_port"} & set(settings)):
        raise ConfigError(f"{name} has no meaning for ray_batch; leave it out")
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"output={str(folder)!r} is a file; on a cluster it must be a folder")
    folder.mkdir(parents=True, exist_ok=True)
    ask = BatchSettings(
        source=str(source),
        output=folder / "part.jsonl",
        model=str(model),
        params=params_of_every_line(params),
        include=tuple(include),
        served_model_name=as_names(served_model_name),
        **settings,
    )
    options = options_on_every_node(engine)
    check_options(options)
    digest = model_fingerprint(model, options.get("tokenizer"), draft=draft_of(options))
    job = _RayJob(ask, options, folder, digest)
    actors = ray_data.ActorPoolStrategy(size=num_engines)
    resources = {"num_gpus": gpus_per_engine, "num_cpus": cpus_per_engine, "compute": actors}
    return job.run(ray_data, resources, part_lines)


def ray_map(
    dataset: Any,
    model: str | Path,
    *,
    num_engines: int = 1,
    gpus_per_engine: float = 0,
    cpus_per_engine: float = 1,
    batch_size: int = 256,
    params: SamplingParams | Mapping[str, Any] | None = None,
    engine: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> Any:
    """A Ray dataset with the columns generated_text, finish_reason and error added.

    Columns named prompt, prompt_token_ids or messages are what is asked, custom_id and those named
    as fields of `SamplingParams` say how; all others are carried along. A row that fails has its
    error in its own row. A row without a seed gets one from `seed` and its custom_id, or without
    that from its prompt: then equal prompts get equal texts.

    Raises:
        ConfigError: ray is not installed, a column that would be overwritten, or what no column
            would show (n, logprobs, prompt_logprobs; strict of the engine).
    """
    ray_data = _import_ray()
    _check_resources(num_engines, gpus_per_engine, cpus_per_engine)
    refuse_what_no_column_shows(SamplingParams(**params_of_every_line(params)))
    if (engine or {}).get("strict"):
        raise ConfigError("strict=True has no meaning for ray_map, where errors are rows'")
    taken = set(RESULT_COLUMNS) & set(dataset.columns() or ())
    if taken:
        raise ConfigError(f"the dataset has a column {sorted(taken)[0]!r}; rename it")
    return dataset.map_batches(
        RowWorker,
        fn_constructor_kwargs={
            "model": path_on_every_node(model),
            "options": options_on_every_node(engine),
            "params": params_of_every_line(params),
            "seed": seed,
        },
        batch_format="pyarrow",
        batch_size=batch_size,
        compute=ray_data.ActorPoolStrategy(size=num_engines),
        num_gpus=gpus_per_engine,
        num_cpus=cpus_per_engine,
    )


class _RayJob:
    """One run of one job on a cluster."""

    def __init__(
        self, ask: BatchSettings, options: Mapping[str, Any], folder: Path, model_digest: str
    ) -> None:
        self._ask = ask
        self._options = options
        self._folder = folder
        self._model_digest = model_digest
        self._statistics = Statistics()
        self._engines: dict[str, dict[str, float]] = {}  # by worker, as of its last part
        self._done = self._failed = self._total = self._before = 0
        self._start_s = time.perf_counter()
        self.fingerprint = job_fingerprint(
            model_digest, options, ask.params, seed=ask.seed, include=sorted(ask.include)
        )

    def run(self, ray_data: Any, resources: Mapping[str, Any], part_lines: int) -> BatchSummary:
        with ExitStack() as stack:
            with storage_errors(self._folder):
                scratch = stack.enter_context(job_folder(self._folder))
                source = open_input(
                    self._ask.source,
                    scratch / SPOOL,
                    max_line_bytes=self._ask.max_line_bytes,
                )
                ledger = stack.enter_context(closing(Ledger(scratch / LEDGER)))
                self._scan(source, ledger)
            parts = list(cut_parts(source, ledger, part_lines, self._total))
            if parts:
                reporter = ProgressReporter(self._ask.progress, self._progress)  # type: ignore[arg-type]
                stack.enter_context(closing(reporter))
                for row in self._results(ray_data, resources, source, parts):
                    self._done += int(row["done"])
                    self._failed += int(row["failed"])
                    self._statistics.merge(json.loads(row["statistics"]))
                    self._engines[str(row["worker"])] = json.loads(row["engine"])
                    reporter.tick()
        summary = self._summary()
        write_summary(summary)
        return summary

    def _scan(self, source: BatchInput, ledger: Ledger) -> None:
        single = not source.is_folder
        rows = ((one, decode_line(one, single_file=single).custom_id) for one in source.lines())
        ledger.fill(rows, (0, 1))
        for number, path in enumerate(sorted(self._folder.glob("part-*.jsonl"))):
            resume(
                path,
                ledger,
                self.fingerprint,
                force=self._ask.force,
                retry_errors=self._ask.retry_errors,
                file=number,
            )
        self._done, self._failed, pending = ledger.counts()
        self._before = self._done + self._failed
        self._total = self._before + pending

    def _results(
        self, ray_data: Any, resources: Mapping[str, Any], source: BatchInput, parts: list[Part]
    ) -> Iterator[Mapping[str, Any]]:
        """What the workers say of every part, as parts end."""
        setup = WorkerSetup(
            ask=self._ask,
            model=path_on_every_node(self._ask.model),
            options=self._options,
            folder=self._folder.resolve(),
            job=self.fingerprint,
            model_digest=self._model_digest,
            single_file=not source.is_folder,
        )
        limit = source.max_line_bytes
        items = [{"part": json.dumps(_part_values(part))} for part in parts]
        # A block a part: what is retried when an actor dies is a part, and any actor may take it.
        dataset = ray_data.from_items(items, override_num_blocks=len(items))
        dataset = dataset.map(lambda row: _read_part(row, limit))
        dataset = dataset.map(PartWorker, fn_constructor_kwargs={"setup": setup}, **resources)
        dataset.context.enable_progress_bars = False  # the job has its own
        try:
            yield from dataset.iter_rows()
        except Exception as error:  # Ray has many kinds, and wraps those of workers
            raise JaxInferError(
                f"the job of {str(self._folder)!r} on Ray was ended: {cause_of(error)}. Mend that, "
                "then start the same job again: it goes on from there"
            ) from error

    def _progress(self) -> Progress:
        facts = joined_facts(self._engines.values())
        peak = facts.get("kv_cache_usage_peak_perc", 0.0)  # between parts, nothing is in use
        return measure_progress(
            done=self._done,
            failed=self._failed,
            total=self._total,
            num_before=self._before,
            elapsed_s=time.perf_counter() - self._start_s,
            prompt_tokens=self._statistics.prompt_tokens,
            completion_tokens=self._statistics.completion_tokens,
            metrics={**facts, "kv_cache_usage_perc": peak},
        )

    def _summary(self) -> BatchSummary:
        return BatchSummary(
            output=self._folder,
            done=self._done,
            failed=self._failed,
            total=self._total,
            interrupted=False,
            fingerprint=self.fingerprint,
            run=self._statistics.summary(time.perf_counter() - self._start_s),
            engine=joined_facts(self._engines.values()),
        )


def cut_parts(source: BatchInput, ledger: Ledger, part_lines: int, total: int) -> Iterator[Part]:
    """Parts with at least one pending line; a part's name depends on its place alone."""
    if part_lines < 1:
        raise ConfigError(f"part_lines={part_lines!r} must be an int of at least 1")
    if not all(source.can_seek(path) for path in source.files):
        part_lines = max(part_lines, -(-total // _MAX_PASSES))
    pending = ledger.pending()
    next_pending, digest = next(pending, (-1, ""))
    position = 0
    for number, path in enumerate(source.files):
        lines = source.lines_of(path, position=position)
        for place in range(10**9):
            chunk = [(one.position, one.number, one.offset) for one in islice(lines, part_lines)]
            if not chunk:
                break
            first, position = chunk[0], chunk[-1][0] + 1
            runs, digests = list[tuple[int, int]](), list[str]()
            while first[0] <= next_pending < position:
                _append_to_runs(runs, next_pending - first[0])
                digests.append(digest)
                next_pending, digest = next(pending, (-1, ""))
            if runs:
                yield Part(
                    name=f"part-{number:05d}-{place:07d}.jsonl",
                    path=str(path.resolve()),
                    position=first[0],
                    number=first[1],
                    offset=first[2],
                    pending=tuple(runs),
                    digest=part_digest(digests),
                )
    if next_pending >= 0:
        raise JaxInferError(SHORTER_INPUT)


def _append_to_runs(runs: list[tuple[int, int]], place: int) -> None:
    """Example: (0, 2) and place 2 are (0, 3); place 4 begins (4, 1)."""
    if runs and sum(runs[-1]) == place:
        runs[-1] = (runs[-1][0], runs[-1][1] + 1)
    else:
        runs.append((place, 1))


def _part_values(part: Part) -> list[Any]:
    place = [part.position, part.number, part.offset]
    return [part.name, part.path, *place, part.pending, part.digest]


def _read_part(row: Mapping[str, Any], max_line_bytes: int) -> dict[str, str]:
    """Runs in a Ray task: the lines of a part."""
    name, path, position, number, offset, pending, digest = json.loads(row["part"])
    return {
        "part": name,
        "digest": digest,
        "lines": pack_lines(_lines(path, position, number, offset, pending, max_line_bytes)),
    }


def _lines(
    path: str, position: int, number: int, offset: int, runs: list[list[int]], limit: int
) -> Iterator[InputLine]:
    source = BatchInput([Path(path)], max_line_bytes=limit)
    wanted = {position + first + more for first, count in runs for more in range(count)}
    last = max(wanted)
    for line in source.lines_of(Path(path), position=position, number=number, offset=offset):
        if line.position in wanted:
            yield line
        if line.position >= last:
            return


def cause_of(error: BaseException) -> str:
    """What jaxinfer said in a worker, beneath Ray's own errors; else the error's last line."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, JaxInferError):
            return str(inner)
        inner = getattr(inner, "cause", None) or inner.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"


def _check_resources(num_engines: int, gpus: float, cpus: float) -> None:
    if isinstance(num_engines, bool) or not isinstance(num_engines, int) or num_engines < 1:
        raise ConfigError(f"num_engines={num_engines!r} must be an int of at least 1")
    for name, value in (("gpus_per_engine", gpus), ("cpus_per_engine", cpus)):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_number and 0 <= value < math.inf):
            raise ConfigError(f"{name}={value!r} must be a number of at least 0")


def _import_ray() -> Any:
    try:
        import ray.data  # type: ignore[reportMissingImports]
    except ImportError as error:
        raise ConfigError(
            f"jobs on Ray need Ray Data ({error}); install it with: pip install 'jaxinfer[ray]'"
        ) from error
    return ray.data
