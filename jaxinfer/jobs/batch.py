"""JOINT. Batch jobs: a file of requests in, a file of results out, resumable at any moment.

    input ── scan: ids, digests ──▶ ledger ◀── what the output file holds already
      │                               │
      └── pending lines ──▶ engine ──▶ output file: appended and synced in groups

Knows the order of things; reading, checking, running and writing are the modules beside it.
"""

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.errors import ConfigError, JaxInferError
from jaxinfer.jobs import session
from jaxinfer.jobs.batch_file import OutputFile, rewrite, write_whole
from jaxinfer.jobs.batch_fingerprint import (
    draft_of,
    engine_fingerprint,
    job_fingerprint,
    model_fingerprint,
)
from jaxinfer.jobs.batch_folder import LEDGER, SPOOL, job_folder, storage_errors
from jaxinfer.jobs.batch_input import BatchInput, InputLine, open_input
from jaxinfer.jobs.batch_ledger import Ledger
from jaxinfer.jobs.batch_lines import SHORTER_INPUT, LineRunner
from jaxinfer.jobs.batch_loop import Stop, run_requests
from jaxinfer.jobs.batch_metrics import MetricsServer
from jaxinfer.jobs.batch_progress import Progress, ProgressReporter, measure_progress
from jaxinfer.jobs.batch_request import decode_line
from jaxinfer.jobs.batch_resume import resume
from jaxinfer.jobs.batch_settings import (
    BatchSettings,
    BatchSummary,
    as_names,
    params_of_every_line,
    shard_path,
)
from jaxinfer.jobs.batch_statistics import Statistics, engine_facts

if TYPE_CHECKING:
    from jaxinfer.llm import LLM

_log = logging.getLogger("jaxinfer")
_PUBLISH_S = 1.0


def run_batch(
    source: str | Path,
    output: str | Path,
    model: str | Path,
    *,
    params: SamplingParams | Mapping[str, Any] | None = None,
    engine: Mapping[str, Any] | None = None,
    shard: tuple[int, int] = (0, 1),
    served_model_name: str | Sequence[str] = (),
    include: Sequence[str] = (),
    **settings: Any,
) -> BatchSummary:
    """Runs a file of requests through a model and writes a file of results.

    Started again with the same arguments it goes on where it ended, whatever ended it. Ctrl-C
    finishes what is running; a second one stops at once.

    Args:
        source: .jsonl (.gz too), .parquet, a folder of such files, or "-" for standard input.
        output: file of results; `OUTPUT.summary.json` beside it gets the summary.
        model: folder, GGUF file, hub id or demo name.
        params: for every line that does not say otherwise.
        engine: keyword arguments of `LLM`.
        shard: see `BatchSettings`, as are `served_model_name`, `include` and `settings`.

    Raises:
        JaxInferError: the job cannot begin or go on; single lines that fail do not raise.
    """
    ask = BatchSettings(
        source=str(source),
        output=shard_path(Path(output), shard),
        model=str(model),
        params=params_of_every_line(params),
        shard=shard,
        served_model_name=as_names(served_model_name),
        include=tuple(include),
        **settings,
    )
    options = dict(engine or {})
    return BatchJob(
        ask,
        options,
        open_model=lambda: session.open_llm(str(model), **options),
        digest_model=lambda: model_fingerprint(
            model,
            options.get("tokenizer"),
            draft=draft_of(options),
            show_progress=bool(options.get("show_progress", True)),
        ),
    ).run()


@dataclass(slots=True)
class BatchJob:
    """One run of one job.

    Args:
        ask: the settings. options: of the engine.
        open_model: opens the model; called only if there is a line to be run.
        digest_model: gives the fingerprint of the model's files, which it may have to fetch.
    """

    ask: BatchSettings
    options: Mapping[str, Any]
    open_model: "Callable[[], LLM]"
    digest_model: Callable[[], str]
    stop: Stop = field(default_factory=Stop)

    _model_digest: str | None = None
    _num_before: tuple[int, int, int] = (0, 0, 0)  # done, failed, total when the run began
    _runner: LineRunner | None = None
    _metrics: Mapping[str, float] = field(default_factory=dict)
    _start_s: float = 0.0
    _seconds: float = 0.0

    def run(self) -> BatchSummary:
        """Runs the lines that are pending.

        Raises:
            JaxInferError: the job cannot begin or go on.
        """
        check_options(self.options)
        with storage_errors(self.ask.output), ExitStack() as stack:
            folder = stack.enter_context(job_folder(self.ask.output))
            source = open_input(
                self.ask.source, folder / SPOOL, max_line_bytes=self.ask.max_line_bytes
            )
            ledger = stack.enter_context(closing(Ledger(folder / LEDGER)))
            self._scan(source, ledger)
            with _signals_stop(self.stop, lambda: self._runner is not None):
                self._run_pending(source, ledger)
            done, failed, total = self._counts()
            if self.ask.ordered and done + failed == total:
                _put_in_order(self.ask.output, ledger)
            summary = self._summary()
            write_summary(summary)
        return summary

    @property
    def model_digest(self) -> str:
        """The fingerprint of the model's files, asked for once, after the input was read."""
        if self._model_digest is None:
            self._model_digest = self.digest_model()
        return self._model_digest

    @property
    def fingerprint(self) -> str:
        """Outputs with another are not this job's."""
        return job_fingerprint(
            self.model_digest,
            self.options,
            self.ask.params,
            seed=self.ask.seed,
            include=sorted(self.ask.include),
        )

    def _scan(self, source: BatchInput, ledger: Ledger) -> None:
        """Reads every line's id and what the output holds; runs nothing."""
        single = not source.is_folder
        rows = ((one, decode_line(one, single_file=single).custom_id) for one in source.lines())
        ledger.fill(rows, self.ask.shard)
        num_held = resume(
            self.ask.output,
            ledger,
            self.fingerprint,
            force=self.ask.force,
            retry_errors=self.ask.retry_errors,
        )
        done, failed, pending = ledger.counts()
        self._num_before = (done, failed, done + failed + pending)
        if num_held:
            _log.info("%s: %d of %d lines are there", self.ask.output, num_held, num_held + pending)

    def _run_pending(self, source: BatchInput, ledger: Ledger) -> None:
        with ExitStack() as stack:
            file = stack.enter_context(closing(OutputFile(self.ask.output, ledger.land)))
            server = None
            if self.ask.metrics_port is not None:
                server = stack.enter_context(closing(MetricsServer(self.ask.metrics_port)))
            done, failed, total = self._num_before
            if done + failed == total or self.stop.wanted:
                return
            llm = stack.enter_context(self.open_model())
            self._runner = LineRunner(
                llm,
                self.ask,
                job=self.fingerprint,
                engine=engine_fingerprint(
                    self.model_digest, llm.geometry, llm.engine_config, session.device_name()
                ),
                single_file=not source.is_folder,
                strict=bool(self.options.get("strict")),
                add_line=lambda position, line, failed: file.add(position, line, failed=failed),
            )
            reporter = ProgressReporter(self.ask.progress, self._progress)  # type: ignore[arg-type]
            stack.enter_context(closing(reporter))
            self._start_s = time.perf_counter()
            try:
                self._pump(llm, _pending_lines(source, ledger), file, reporter, server)
            finally:
                file.flush()
                self._see(llm)

    def _pump(
        self,
        llm: "LLM",
        pending: Iterator[tuple[InputLine, str]],
        file: OutputFile,
        reporter: ProgressReporter,
        server: MetricsServer | None,
    ) -> None:
        runner = self._runner
        assert runner is not None
        publish_s = 0.0

        def do_chores() -> None:
            nonlocal publish_s
            file.flush_if_due()
            now = time.perf_counter()
            if now >= publish_s:
                publish_s = now + _PUBLISH_S
                self._see(llm)
                reporter.tick()
                if server is not None:
                    server.publish({**self._metrics, **self._line_metrics()})

        lines = self._until_stopped(pending, do_chores)
        with closing(run_requests(llm, runner.requests(lines), self.stop)) as results:
            for result in results:
                if result is not None:
                    runner.take_result(*result)
                else:
                    do_chores()

    def _until_stopped(
        self, pending: Iterator[tuple[InputLine, str]], do_chores: Callable[[], None]
    ) -> Iterator[tuple[InputLine, str]]:
        """Lines that are refused make no steps of the engine: chores are done between them too."""
        for one in pending:
            if self.stop.wanted:
                return
            yield one
            do_chores()

    def _see(self, llm: "LLM") -> None:
        self._metrics = llm.get_metrics()
        self._seconds = time.perf_counter() - self._start_s

    def _counts(self) -> tuple[int, int, int]:
        """(done, failed, total) lines as of now."""
        done, failed, total = self._num_before
        if self._runner is None:
            return done, failed, total
        return done + self._runner.num_done, failed + self._runner.num_failed, total

    def _line_metrics(self) -> dict[str, float]:
        done, failed, total = self._counts()
        return {"batch_lines_done": done, "batch_lines_failed": failed, "batch_lines": total}

    def _progress(self) -> Progress:
        done, failed, total = self._counts()
        statistics = self._runner.statistics if self._runner else Statistics()
        return measure_progress(
            done=done,
            failed=failed,
            total=total,
            num_before=sum(self._num_before[:2]),
            elapsed_s=self._seconds,
            prompt_tokens=statistics.prompt_tokens,
            completion_tokens=statistics.completion_tokens,
            metrics=self._metrics,
        )

    def _summary(self) -> BatchSummary:
        done, failed, total = self._counts()
        statistics = self._runner.statistics if self._runner else Statistics()
        return BatchSummary(
            output=self.ask.output,
            done=done,
            failed=failed,
            total=total,
            interrupted=self.stop.wanted and done + failed < total,
            fingerprint=self.fingerprint,
            run=statistics.summary(self._seconds),
            engine=engine_facts(self._metrics),
        )


def write_summary(summary: BatchSummary) -> None:
    """Writes `OUTPUT.summary.json`."""
    path = summary.output.with_name(summary.output.name + ".summary.json")
    text = json.dumps(summary.as_json(), indent=2, ensure_ascii=False)
    write_whole(path, text.encode() + b"\n")


def check_options(options: Mapping[str, Any]) -> None:
    """Raises ConfigError for options of the engine that a batch job cannot honour."""
    if options.get("max_num_waiting") is not None:
        raise ConfigError(
            f"max_num_waiting={options['max_num_waiting']!r} has no place in a batch job, which "
            "reads ahead no further than the engine needs; leave it out"
        )
    tokenizer = options.get("tokenizer")
    if not isinstance(tokenizer, str | Path | None):
        raise ConfigError(
            f"tokenizer={type(tokenizer).__name__} object: a job is resumed by another process, "
            "which must be able to tell that it is the same; name the folder that it is in"
        )


def _pending_lines(source: BatchInput, ledger: Ledger) -> Iterator[tuple[InputLine, str]]:
    """Lines that are to be run, with their digests, in one pass through the input."""
    pending = ledger.pending()
    position, digest = next(pending, (-1, ""))
    for line in source.lines():
        if line.position == position:
            yield line, digest
            position, digest = next(pending, (-1, ""))
        if position < 0:
            return
    if position >= 0:
        raise JaxInferError(SHORTER_INPUT)


def _put_in_order(output: Path, ledger: Ledger) -> None:
    """Sorts a finished output by the input's order; one line is in memory at a time."""
    offset = 0
    for start, size in ledger.landed():
        if start != offset:
            rewrite(output, ledger.landed())
            return
        offset += size


@contextmanager
def _signals_stop(stop: Stop, has_begun: Callable[[], bool]) -> Iterator[None]:
    """Ctrl-C (and a request to terminate) sets `stop`; a second one raises KeyboardInterrupt.

    So does the first while the model is loading, when there is nothing to finish.
    """

    def on_signal(*_: object) -> None:
        if stop.wanted or not has_begun():
            raise KeyboardInterrupt
        stop.wanted = True
        os.write(2, b"\nstopping: what is running is finished; once more stops at once\n")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {one: signal.signal(one, on_signal) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
