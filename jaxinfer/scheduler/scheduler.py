"""HOST. Who runs in the next step. No jax, no text: steps out, results in.

                 ┌──────────────── waiting ────────────────┐
      add ──────▶│ latency-sensitive, priority, arrival    │◀── preempted (optimistic admission) ──┐
                 └────────────────────┬────────────────────┘                                       │
              a slot is free, and pages: the worst case, or what is known                          │
                                      ▼                                                            │
    slot 0   │ prefill: chunks of T tokens, several a step │──▶ decode: one token a step ──▶ finish
    slot 1   │ (what the prefix cache holds is left out)   │        slot and pages are free once the
    slot B-1 │                                             │        last step in flight was read

A request is admitted when its first chunk has a row in the step, not before: its prefix is looked
up then, and what the steps before computed is found. Steps are planned ahead: `schedule` may be
called again before the last result came, and counts on what launched steps will have done.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxinfer.config.engine_config import EngineConfig
from jaxinfer.config.geometry import Geometry
from jaxinfer.config.step_plan import Plan, PrefillPlan, StepResult, VerifyPlan, VerifyResult
from jaxinfer.errors import RequestError
from jaxinfer.scheduler.board import init_board
from jaxinfer.scheduler.drafting import Drafter
from jaxinfer.scheduler.planning import (
    Step,
    StepRow,
    decode_plan,
    prefill_plan,
    verify_plan,
)
from jaxinfer.scheduler.request import Request
from jaxinfer.scheduler.results import accept
from jaxinfer.scheduler.row_choice import RowChoice


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """For the metrics; prefix_queries and prefix_hits are prompt tokens."""

    preemptions: int
    prefix_queries: int
    prefix_hits: int


class Scheduler:
    """Requests, slots and pages.

    Args:
        geometry: every axis length.
        ask: the settings that choose: admission, preemption, policy, budgets, prefix cache.
        vocab_size: V.
        drafter: drafts tokens for verify steps; None without speculation.
    """

    def __init__(
        self,
        geometry: Geometry,
        ask: EngineConfig,
        vocab_size: int,
        drafter: Drafter | None = None,
    ) -> None:
        self.geometry = geometry
        self.ask = ask
        self._board = init_board(geometry, ask, vocab_size)
        self.slots, self.waiting = self._board.slots, self._board.waiting
        self.pages, self.admission = self._board.pages, self._board.admission
        self._choice = RowChoice(self._board, drafter)
        self._drafter = drafter
        self._is_verifying = False  # what it accepts, the next step has to know
        self._num_siblings = 0  # not yet queued
        self._num_in_flight = 0  # steps that were planned and whose result has not come
        self._turn = 0
        self._timed: set[Request] = set()

    @property
    def running(self) -> list[Request]:
        """Requests that have a slot and go on, by slot."""
        return self._board.running

    @property
    def num_waiting(self) -> int:
        """Requests without a slot."""
        return len(self.waiting) + self._num_siblings

    @property
    def has_work(self) -> bool:
        """True while any request waits or holds a slot."""
        return self.num_waiting > 0 or any(self.slots)

    def add(self, request: Request) -> None:
        """Queues a request with its siblings; `why_never` must have said None.

        Raises:
            RequestError: more than `max_num_waiting` would wait for a slot.
        """
        most = self.ask.max_num_waiting
        waiting = self.num_waiting + 1 + len(request.siblings) - self.slots.count(None)
        if most is not None and waiting > most:
            raise RequestError(
                f"{waiting} requests would wait for a slot, max_num_waiting allows {most}; "
                "pass fewer prompts (or a smaller n) at once, or raise it"
            )
        self.waiting.add(request)
        self._num_siblings += len(request.siblings)
        if request.options.timeout_s is not None:
            self._timed.update((request, *request.siblings))

    def why_never(self, tokens: int) -> str | None:
        """Why a request of `tokens` tokens can never be admitted, or None."""
        for pool, need in zip(self.pages.pools, self.pages.needs(tokens), strict=True):
            if need > pool.num_usable:
                return (
                    f"the request needs {need} pages of the KV cache, the pool has "
                    f"{pool.num_usable}; lower max_tokens or raise num_gpu_blocks_override"
                )
        return None

    def overdue(self, now_s: float) -> list[Request]:
        """Unfinished requests whose time is over."""
        late = [one for one in self._timed if now_s > one.arrival_s + (one.options.timeout_s or 0)]
        return sorted(late, key=lambda one: one.order)

    def schedule(self, now_s: float = 0.0) -> Step | None:
        """The next step; None when there is nothing to run before a result comes, or at all."""
        if self._is_verifying:
            return None
        rows, is_prefill = self._choice.choose(now_s, self._num_in_flight)
        if not rows:
            return None
        self._is_verifying = any(row.drafts for row in rows)
        plan = self._plan(rows, is_prefill)
        self._launch(rows)
        return Step(chores=self.admission.take_chores(), plan=plan, rows=tuple(rows))

    def _plan(self, rows: Sequence[StepRow], is_prefill: bool) -> Plan:
        parts = (rows, self.geometry, self.pages, self._board.sampling)
        if is_prefill:
            return prefill_plan(*parts)
        if self._is_verifying and self._drafter is not None:
            return verify_plan(*parts, on_device=self._drafter.on_device)
        return decode_plan(*parts)

    def update(self, step: Step, result: StepResult | VerifyResult) -> Iterator[Request]:
        """Takes in a step's result: yields each request that got a token or came to its end.

        A request that got several tokens comes once for each, before the next is taken in: whoever
        ends it (a stop string) has the others dropped. So are tokens of requests that finished
        while the step was in flight.
        """
        self._num_in_flight -= 1
        for place, row in enumerate(step.rows):
            request = row.request
            request.num_in_flight -= 1
            request.num_drawing -= int(row.draws)
            if request.is_finished:
                self._release_if_landed(request)
            elif isinstance(result, VerifyResult):
                yield from self._accept_run(row, result, place)
            elif row.draws:
                request.num_computed = row.end
                accept(request, result, place)
                if not isinstance(step.plan, PrefillPlan):
                    self.admission.register(request, request.num_computed)
                yield request
            else:
                request.num_computed = row.end
                if not request.max_new_tokens and row.end >= request.prefill_end:
                    request.finish_reason = "length"
                    yield request
        if isinstance(step.plan, VerifyPlan):
            self._is_verifying = False

    def _accept_run(self, row: StepRow, result: VerifyResult, place: int) -> Iterator[Request]:
        """The drafts that stand, and the token after them, one by one."""
        request, each = row.request, self.geometry.draft_tokens + 1
        if row.drafts and not result.draws.finite[place * each]:
            self._take_back(row)
            return
        num_accepted = int(result.num_accepted[place])
        request.num_scheduled = row.start + num_accepted + 1
        taken = 0
        while taken <= num_accepted and not request.is_finished:
            request.num_computed = row.start + taken + 1
            accept(request, result.draws, place * each + taken)
            self.admission.register(request, request.num_computed)
            taken += 1
            yield request
        if row.drafts and self._drafter is not None:
            self._drafter.see(request, len(row.drafts), min(taken, num_accepted))

    def _take_back(self, row: StepRow) -> None:
        """A row whose first draw is no number, as if it had not run; the next step has no drafts.

        A draft may be at fault: its values reach the rows before it with weight 0, and 0 · NaN is
        NaN. Without it the request may be sound, and it is not to fail for what was only tried.
        """
        request = row.request
        request.num_scheduled = row.start
        request.may_not_draft = True
        self.admission.seat_again(request)
        if self._drafter is not None:
            self._drafter.see(request, len(row.drafts), 0)

    def finish(self, request: Request) -> None:
        """Takes out a request that has its finish reason; its pages are free once none of its rows
        is in flight."""
        self._timed.discard(request)
        self.admission.drop(request)
        self._queue_siblings(request)
        if request.slot is not None:
            self._release_if_landed(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        elif request.leader is not None and request in request.leader.siblings:
            request.leader.siblings.remove(request)
            self._num_siblings -= 1

    def is_steady(self, num_steps: int) -> bool:
        """True if the next `num_steps` decode steps have the same rows, whatever they draw, unless
        a token or a stop string ends a request."""
        running = self.running
        if self._choice.most_drafts(running):
            return False
        return (
            bool(running)
            and not self.num_waiting
            and all(one.is_prefilled and one.num_to_draw >= num_steps for one in running)
            and len(self._choice.sharing(running)) == len(running)
        )

    def take_counts(self) -> Counts:
        """What happened since the last call."""
        counts = Counts(
            preemptions=self._choice.num_preemptions,
            prefix_queries=self.admission.num_queries,
            prefix_hits=self.admission.num_hits,
        )
        self._choice.num_preemptions = self.admission.num_queries = self.admission.num_hits = 0
        return counts

    def reset_prefix_cache(self) -> None:
        """Forgets every prefix; running requests keep their pages."""
        self.pages.forget()

    # --- bookkeeping --------------------------------------------------------------------------

    def _launch(self, rows: Sequence[StepRow]) -> None:
        self._num_in_flight += 1
        self._turn += 1
        for row in rows:
            request = row.request
            request.num_scheduled = max(request.num_scheduled, row.end)
            request.num_in_flight += 1
            request.num_drawing += int(row.draws)
            request.last_turn = self._turn
            if request.siblings and request.is_prefilled:
                self._queue_siblings(request)

    def _queue_siblings(self, request: Request) -> None:
        for sibling in request.siblings:
            self.waiting.add(sibling)
        self._num_siblings -= len(request.siblings)
        request.siblings = []

    def _release_if_landed(self, request: Request) -> None:
        if request.slot is not None and not request.num_in_flight:
            self.pages.release(request.slot)
            self.slots[request.slot] = None
            request.slot = None
