"""JOINT. The loop: schedule, launch, read, update, make text. Holds the parts `build.py` assembled.

With overlap the host works one step behind the device:

    device   | step 1 ...... | step 2 ...... | step 3 ...... |
    host      launch 2        read 1, text,   read 2, text,
                              launch 3        launch 4

What a step draws stays on the device, so that the next needs no result of it. A token that was
drawn after its request's end (an EOS or a stop string seen one step late) is dropped.
"""

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxinfer.config.engine_config import EngineConfig
from jaxinfer.config.request_options import RequestOptions
from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.config.step_plan import (
    DecodePlan,
    PrefillPlan,
    VerifyPlan,
)
from jaxinfer.engine.draft_times import DraftTimes
from jaxinfer.engine.intake import Intake
from jaxinfer.engine.metrics import EngineMetrics
from jaxinfer.engine.outputs import StreamDelta
from jaxinfer.engine.task import Completion, Task
from jaxinfer.engine.trace import NoTimeline, Timeline
from jaxinfer.errors import RequestError
from jaxinfer.runner.runner import Launched, Runner
from jaxinfer.scheduler.drafting import DraftCounts, Drafter
from jaxinfer.scheduler.planning import Step
from jaxinfer.scheduler.request import Request
from jaxinfer.scheduler.results import accept_prompt_logprobs
from jaxinfer.scheduler.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class _Flight:
    """A step that was launched and not read."""

    step: Step
    launched: Launched
    launched_s: float
    planning_s: float  # that scheduling took: drafts that are looked up are made there

    @property
    def name(self) -> str:
        return {PrefillPlan: "prefill", DecodePlan: "decode"}.get(type(self.step.plan), "verify")


class Engine:
    """Runs tasks through slots. Not safe for use from several threads at once.

    Args:
        ask: the settings; those of scheduling go on to the scheduler.
        intake: makes requests of prompts.
        runner: device state and programs.
        drafter: drafts tokens for verify steps; None without speculation.
        metrics: what is counted.
        timeline: gets the spans of the loop.
    """

    def __init__(
        self,
        *,
        ask: EngineConfig,
        intake: Intake,
        runner: Runner,
        drafter: Drafter | None = None,
        metrics: EngineMetrics,
        timeline: Timeline | NoTimeline,
    ) -> None:
        self.ask = ask
        self.intake = intake
        self.runner = runner
        self.metrics = metrics
        self.timeline = timeline
        self._drafter = drafter
        self._draft_times = DraftTimes()
        self.scheduler = self._new_scheduler()
        self._flights: deque[list[_Flight]] = deque()  # bursts, each read as one
        self._read_s = 0.0
        self._owners: dict[Request, tuple[Task, Completion]] = {}

    @property
    def has_work(self) -> bool:
        """True while any task is under way."""
        return self.scheduler.has_work or bool(self._flights)

    def numbers(self) -> dict[str, float]:
        """What was counted so far, by name."""
        drafts = self._drafter.counts if self._drafter else DraftCounts()
        numbers = self.metrics.snapshot() | self._draft_times.numbers()
        return numbers | drafts.numbers(self.runner.geometry.draft_tokens)

    def add(
        self,
        prompt: Any,
        params: SamplingParams,
        options: RequestOptions | None = None,
        *,
        scores: bool = False,
    ) -> Task:
        """Queues a prompt. One that cannot be served comes back finished, with its error."""
        task = self.intake.open_task(prompt, params, time.perf_counter())
        try:
            request = self.intake.fill(task, prompt, options or RequestOptions(), scores=scores)
            self._admit(task, request)
        except RequestError as error:
            task.completions, task.error = [], str(error)
            self.metrics.finished["error"] += 1
        return task

    def step(self) -> list[StreamDelta]:
        """Launches what can be, reads the oldest: what it added to which completion."""
        deltas = self._end_overdue()
        self._launch_ahead()
        for flight in self._flights.popleft() if self._flights else ():
            deltas += self._read(flight)
        self._see_state()
        return deltas

    def abort(self, task: Task) -> None:
        """Ends a task's unfinished completions with reason "abort"; frees their pages."""
        for completion in task.completions:
            if not completion.request.is_finished:
                self._end_early(completion.request, None)

    def reset(self) -> None:
        """Ends everything under way and starts with empty slots and pages.

        For an exception that came between two statements (Ctrl-C): page accounting may be half
        done, and a cache that was donated to a step may be gone.
        """
        for request in list(self._owners):
            request.finish_reason = request.finish_reason or "abort"
            self.metrics.see_finished(request)
        self._owners.clear()
        self._flights.clear()
        self.scheduler = self._new_scheduler()
        self.runner.revive()
        self._see_state()

    def close(self) -> None:
        """Frees the device memory and ends the timeline."""
        self._flights.clear()
        self.timeline.close()
        self.runner.close()

    def _new_scheduler(self) -> Scheduler:
        vocab_size = self.intake.vocab_size
        return Scheduler(self.runner.geometry, self.ask, vocab_size, self._drafter)

    def _admit(self, task: Task, request: Request) -> None:
        reason = self.scheduler.why_never(request.max_cached_tokens)
        if reason is not None:
            raise RequestError(reason)
        self.scheduler.add(request)
        for completion in task.completions:
            self._owners[completion.request] = (task, completion)
        self.metrics.prompt_tokens += len(task.prompt_ids)

    # --- launch -------------------------------------------------------------------------------

    def _launch_ahead(self) -> None:
        ahead = 2 if self.ask.async_scheduling else 1
        while len(self._flights) < ahead:
            burst = self._launch_burst()
            if not burst:
                return
            self._flights.append(burst)

    def _launch_burst(self) -> list[_Flight]:
        """One step, or several decode steps where nothing can change between them."""
        most = self.ask.num_decode_steps
        burst = []
        for _ in range(most if most > 1 and self.scheduler.is_steady(most) else 1):
            start = time.perf_counter()
            with self.timeline.span("schedule", "schedule"):
                step = self.scheduler.schedule(start)
            if step is None:
                break
            burst.append(self._launch(step, time.perf_counter() - start))
        return burst

    def _launch(self, step: Step, planning_s: float) -> _Flight:
        start = time.perf_counter()
        with self.timeline.span("launch", "launch", rows=len(step.rows)):
            for chore in step.chores:
                self.runner.do(chore)
            return _Flight(step, self.runner.launch(step.plan), start, planning_s)

    # --- read ---------------------------------------------------------------------------------

    def _read(self, flight: _Flight) -> list[StreamDelta]:
        with self.timeline.span("read", "read"):
            drafted_s = self._wait_for_drafts(flight)
            result = self.runner.read(flight.launched)
        now = time.perf_counter()
        with self.timeline.span("text", "text"):
            failed = [self._take_in(request, now) for request in self._score_prompts(flight)]
            came = self.scheduler.update(flight.step, result)
            taken = [self._take_in(request, now) for request in came]
        self._see_step(flight, drafted_s, now, num_taken=len(taken))
        return failed + taken

    def _wait_for_drafts(self, flight: _Flight) -> float:
        """When the steps that draft for this one were done; its launch, where there were none."""
        plan = flight.step.plan
        if not isinstance(plan, VerifyPlan) or not plan.num_draft_steps:
            return flight.launched_s
        self.runner.wait_for_drafts(flight.launched)
        return time.perf_counter()

    def _see_step(self, flight: _Flight, drafted_s: float, now: float, *, num_taken: int) -> None:
        """Counts a step's time: from its launch, or from the end of the step before it.

        num_taken: tokens that it gave, without those after a request's end.
        """
        start = max(flight.launched_s, self._read_s)
        self._read_s = now
        self.timeline.event(flight.name, "device", start, now, rows=len(flight.step.rows))
        if flight.name == "prefill":
            self.metrics.num_prefill_steps += 1
            self.metrics.prefill_seconds += now - start
        else:
            self.metrics.num_decode_steps += 1
            self.metrics.decode_seconds += now - start
            tokens_a_row = num_taken / len(flight.step.rows)
            self._see_drafts(flight, start, drafted_s, now, tokens_a_row)

    def _see_drafts(
        self, flight: _Flight, start: float, drafted_s: float, now: float, tokens_a_row: float
    ) -> None:
        rows, widths = len(flight.step.rows), self.runner.geometry.decode_widths
        width = next(one for one in widths if one >= rows)
        if not isinstance(flight.step.plan, VerifyPlan):
            self._draft_times.see_decode(width, now - start)
            return
        drafted_s = max(drafted_s, start)
        on_host = 0.0 if drafted_s > start else flight.planning_s
        self._draft_times.see_round(
            width,
            draft_s=drafted_s - start + on_host,
            verify_s=now - drafted_s,
            tokens_a_row=tokens_a_row,
        )

    def _score_prompts(self, flight: _Flight) -> list[Request]:
        """Log-probabilities of prompt tokens for the requests that want them; who failed at it."""
        is_prefill = isinstance(flight.step.plan, PrefillPlan)
        rows = flight.step.rows if is_prefill else ()
        asking = [row.request.prompt_logprobs is not None for row in rows]
        if not any(asking):
            return []
        # All of it: taking rows out on the device would compile a program for that.
        hidden = np.asarray(flight.launched.hidden)
        failed = []
        for place, row in enumerate(rows):
            request = row.request
            targets = request.prompt_ids[row.start + 1 : row.end + 1]
            # Without targets the last chunk holds the last token alone.
            if not asking[place] or request.is_finished or not targets:
                continue
            scores = self.runner.score(hidden[place, : len(targets)], np.array(targets, np.int32))
            accept_prompt_logprobs(request, row.start, scores)
            if request.is_finished:
                failed.append(request)
        return failed

    def _take_in(self, request: Request, now: float) -> StreamDelta:
        task, completion = self._owners[request]
        if request.error is None and request.max_new_tokens:
            self._count_token(request, now)
        text = completion.advance()
        if request.is_finished:
            self._finish(request, now)
        return task.delta(completion, text)

    def _count_token(self, request: Request, now: float) -> None:
        self.metrics.generation_tokens += 1
        if request.first_token_s is None or request.last_token_s is None:
            request.first_token_s = now
            self.metrics.see_first_token(now - request.arrival_s)
        else:
            self.metrics.see_next_token(now - request.last_token_s)
        request.last_token_s = now

    # --- ends ---------------------------------------------------------------------------------

    def _end_overdue(self) -> list[StreamDelta]:
        late = self.scheduler.overdue(time.perf_counter())
        return [self._end_early(request, "timeout") for request in late]

    def _end_early(self, request: Request, stop_reason: str | None) -> StreamDelta:
        task, completion = self._owners[request]
        request.finish_reason, request.stop_reason = "abort", stop_reason
        text = completion.flush()
        self._finish(request, time.perf_counter())
        return task.delta(completion, text)

    def _finish(self, request: Request, now: float) -> None:
        request.finished_s = now
        self.scheduler.finish(request)
        self.runner.forget(request.order)
        del self._owners[request]
        self.metrics.see_finished(request)

    def _see_state(self) -> None:
        scheduler, metrics = self.scheduler, self.metrics
        counts = scheduler.take_counts()
        metrics.num_preemptions += counts.preemptions
        metrics.see_prefix_lookup(num_tokens=counts.prefix_queries, num_hits=counts.prefix_hits)
        pools = scheduler.pages.pools
        metrics.see_usage(
            sum(pool.num_used for pool in pools) / sum(pool.num_usable for pool in pools)
        )
        metrics.see_queues(num_running=len(scheduler.running), num_waiting=scheduler.num_waiting)
