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

from collections.abc import Sequence
from dataclasses import dataclass

from jaxinfer.config.engine_config import EngineConfig
from jaxinfer.config.geometry import Geometry
from jaxinfer.config.step_plan import PrefillPlan, StepResult
from jaxinfer.errors import RequestError
from jaxinfer.scheduler.admission import Admission
from jaxinfer.scheduler.page_tables import PageTables
from jaxinfer.scheduler.planning import Step, StepRow, decode_plan, prefill_plan, slot_of
from jaxinfer.scheduler.prefill_chunks import PrefillChunks
from jaxinfer.scheduler.request import Request
from jaxinfer.scheduler.results import accept
from jaxinfer.scheduler.sampling_rows import SlotSampling
from jaxinfer.scheduler.waiting_queue import WaitingQueue, rank

MAX_PREEMPTIONS = 4  # of a request before others are preferred


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
    """

    def __init__(self, geometry: Geometry, ask: EngineConfig, vocab_size: int) -> None:
        self.geometry = geometry
        self.ask = ask
        self.waiting = WaitingQueue(by_priority=ask.scheduling_policy == "priority")
        self.slots: list[Request | None] = [None] * geometry.num_slots
        self.pages = PageTables(geometry)
        self.admission = Admission(pages=self.pages, ask=ask, vocab_size=vocab_size)
        self._num_preemptions = 0
        self._sampling = SlotSampling(geometry.num_slots)
        self._num_siblings = 0  # not yet queued
        self._num_in_flight = 0  # steps that were planned and whose result has not come
        self._num_prefills = 0  # prefill steps since the last decode step
        self._turn = 0
        self._timed: set[Request] = set()

    @property
    def running(self) -> list[Request]:
        """Requests that have a slot and go on, by slot."""
        return [one for one in self.slots if one is not None and not one.is_finished]

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
                "wait for some to finish, or raise it"
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
        self._turn += 1
        rows, is_prefill = self._choose_rows(now_s)
        if not rows:
            return None
        self._num_prefills = self._num_prefills + 1 if is_prefill else 0
        make = prefill_plan if is_prefill else decode_plan
        plan = make(rows, self.geometry, self.pages, self._sampling)
        self._launch(rows)
        return Step(chores=self.admission.take_chores(), plan=plan, rows=tuple(rows))

    def update(self, step: Step, result: StepResult) -> list[Request]:
        """Takes in a step's result: requests that got a token or came to their end, in row order.

        Tokens drawn for requests that finished in the meantime are dropped.
        """
        self._num_in_flight -= 1
        came = []
        for place, row in enumerate(step.rows):
            request = row.request
            request.num_in_flight -= 1
            request.num_drawing -= int(row.draws)
            if request.is_finished:
                self._release_if_landed(request)
                continue
            request.num_computed = max(request.num_computed, row.end)
            if row.draws:
                accept(request, result, place)
                came.append(request)
            elif not request.max_new_tokens and row.end >= request.prefill_end:
                request.finish_reason = "length"
                came.append(request)
            if not isinstance(step.plan, PrefillPlan):
                self.admission.register(request, request.num_computed)
        return came

    def finish(self, request: Request) -> None:
        """Takes out a request that has its finish reason; its pages are free once none of its rows
        is in flight."""
        self._timed.discard(request)
        self._queue_siblings(request)
        if request.slot is not None:
            self._release_if_landed(request)
        elif request in self.waiting:
            self.waiting.remove(request)
            self.admission.drop(request)
        elif request.leader is not None and request in request.leader.siblings:
            request.leader.siblings.remove(request)
            self._num_siblings -= 1

    def is_steady(self, num_steps: int) -> bool:
        """True if the next `num_steps` decode steps have the same rows, whatever they draw, unless
        a token or a stop string ends a request."""
        running = self.running
        return (
            bool(running)
            and not self.num_waiting
            and all(one.is_prefilled and one.num_to_draw >= num_steps for one in running)
            and len(self._sharing(running)) == len(running)
        )

    def take_counts(self) -> Counts:
        """What happened since the last call."""
        counts = Counts(
            preemptions=self._num_preemptions,
            prefix_queries=self.admission.num_queries,
            prefix_hits=self.admission.num_hits,
        )
        self._num_preemptions = self.admission.num_queries = self.admission.num_hits = 0
        return counts

    def reset_prefix_cache(self) -> None:
        """Forgets every prefix; running requests keep their pages."""
        self.pages.forget()

    # --- who runs -----------------------------------------------------------------------------

    def _choose_rows(self, now_s: float) -> tuple[list[StepRow], bool]:
        """Rows, and whether they are prefilled."""
        rows = self._prefill_rows(now_s) if self._may_prefill() else []
        return (rows, True) if rows else (self._decode_rows(), False)

    def _may_prefill(self) -> bool:
        """Decode comes first: after `max_prefill_steps` prefill steps, if anybody can decode."""
        if self._num_prefills < self.ask.max_prefill_steps:
            return True
        if not self.ask.enable_chunked_prefill and not all(
            one.is_prefilled for one in self.running
        ):
            return True
        # Whoever could decode may not share a step with one that is still prefilled.
        return not self._sharing([one for one in self.running if self._can_decode(one)])

    def _can_decode(self, request: Request) -> bool:
        return request.is_prefilled and request.num_to_draw > 0

    def _rank(self, request: Request) -> tuple[bool, int, int]:
        return rank(request, by_priority=self.ask.scheduling_policy == "priority")

    def _prefill_rows(self, now_s: float) -> list[StepRow]:
        """Chunks of running requests, then of newly admitted ones, up to a program's R; those of
        latency-sensitive requests before all others, which then share the step with them."""
        chunks = PrefillChunks(self.geometry, self.ask, self.admission)
        prefilling = sorted((one for one in self.running if not one.is_prefilled), key=self._rank)
        for is_urgent in (True, False):
            most = self._most_others()
            for request in prefilling:
                if _is_urgent(request) == is_urgent and chunks.may_add(request, most):
                    chunks.add(request)
            while chunks.has_room and (first := self._next_to_admit()) is not None:
                if _is_urgent(first) != is_urgent or not chunks.may_add(first, most):
                    break
                if not self._admit(first, now_s):
                    break
                chunks.add(first)
        return chunks.rows()

    def _next_to_admit(self) -> Request | None:
        return self.waiting.first() if None in self.slots else None

    def _admit(self, request: Request, now_s: float) -> bool:
        slot = self.slots.index(None)
        # Running requests will need pages soon: some stay free for them where none are promised.
        spare = len(self.running) if self.ask.admission == "optimistic" else 0
        if not self.admission.admit(request, slot, spare=spare):
            return False
        self.waiting.admit(request)
        request.slot = slot
        request.admitted_s = now_s if request.admitted_s is None else request.admitted_s
        self.slots[slot] = request
        self._sampling.set(slot, request)
        return True

    def _most_others(self) -> int | None:
        """How many requests may share a step with latency-sensitive ones; None for any number."""
        most = self.ask.latency_max_num_seqs
        if most is not None and any(_is_urgent(one) for one in self.running):
            return most
        return None

    def _sharing(self, requests: Sequence[Request]) -> list[Request]:
        """Those of `requests` that share the step; of too many, those whose last turn is longest
        ago."""
        most = self._most_others()
        others = [one for one in requests if not one.options.latency_sensitive]
        if most is None or len(others) <= most:
            return list(requests)
        left_out = set(sorted(others, key=lambda one: (one.last_turn, one.order))[most:])
        return [one for one in requests if one not in left_out]

    def _decode_rows(self) -> list[StepRow]:
        ready = sorted((one for one in self.running if self._can_decode(one)), key=self._rank)
        rows: list[StepRow] = []
        for request in self._sharing(ready):
            if request.slot is None:
                continue  # preempted for one before it
            start = request.num_scheduled
            if not self._make_room(request, start, start + 1):
                if self._num_in_flight:
                    return []  # what is in flight may end somebody
                continue
            rows.append(StepRow(request=request, start=start, end=start + 1, draws=True))
        return [row for row in rows if row.request.slot is not None]

    def _make_room(self, request: Request, start: int, end: int) -> bool:
        """Pages for the next tokens; others, or the request itself, are preempted if need be."""
        while not self.pages.extend(slot_of(request), start, end):
            if self._num_in_flight:
                return False
            victim = self._victim()
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _victim(self) -> Request:
        """Who gives up its pages: the last by class and priority, there who generated least.

        So that everybody comes to an end, whoever was preempted often is spared; of those, the
        first that arrived goes on.
        """

        def last_to_keep(one: Request) -> tuple:
            if one.num_preemptions >= MAX_PREEMPTIONS:
                return (False, one.order)
            return (True, self._rank(one)[:2], -len(one.output_ids), one.order)

        return max(self.running, key=last_to_keep)

    def _preempt(self, request: Request) -> None:
        slot = slot_of(request)
        self._num_preemptions += 1
        self.admission.preempt(request, slot)
        self.slots[slot], request.slot = None, None
        self.waiting.add(request)

    # --- bookkeeping --------------------------------------------------------------------------

    def _launch(self, rows: Sequence[StepRow]) -> None:
        self._num_in_flight += 1
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


def _is_urgent(request: Request) -> bool:
    return request.options.latency_sensitive
