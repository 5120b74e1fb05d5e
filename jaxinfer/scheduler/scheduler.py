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
from jaxinfer.config.step_plan import PrefillPlan, StepResult, VerifyResult
from jaxinfer.errors import RequestError
from jaxinfer.scheduler.admission import Admission
from jaxinfer.scheduler.drafting import Drafter
from jaxinfer.scheduler.page_tables import PageTables
from jaxinfer.scheduler.planning import (
    Step,
    StepRow,
    decode_plan,
    prefill_plan,
    slot_of,
    verify_plan,
)
from jaxinfer.scheduler.prefill_chunks import PrefillChunks
from jaxinfer.scheduler.request import Request
from jaxinfer.scheduler.results import accept
from jaxinfer.scheduler.sampling_rows import SlotSampling
from jaxinfer.scheduler.waiting_queue import WaitingQueue, rank


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
        self.waiting = WaitingQueue(by_priority=ask.scheduling_policy == "priority")
        self.slots: list[Request | None] = [None] * geometry.num_slots
        self.pages = PageTables(geometry)
        self.admission = Admission(pages=self.pages, ask=ask, vocab_size=vocab_size)
        self._num_preemptions = 0
        self._drafter = drafter
        self._is_verifying = False  # what it accepts, the next step has to know
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
        if self._is_verifying:
            return None
        self._turn += 1
        rows, is_prefill = self._choose_rows(now_s)
        if not rows:
            return None
        self._num_prefills = self._num_prefills + 1 if is_prefill else 0
        self._is_verifying = any(row.drafts for row in rows)
        make = prefill_plan if is_prefill else verify_plan if self._is_verifying else decode_plan
        plan = make(rows, self.geometry, self.pages, self._sampling)
        self._launch(rows)
        return Step(chores=self.admission.take_chores(), plan=plan, rows=tuple(rows))

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
        self._is_verifying = False

    def _accept_run(self, row: StepRow, result: VerifyResult, place: int) -> Iterator[Request]:
        """The drafts that stand, and the token after them, one by one."""
        request, each = row.request, self.geometry.draft_tokens + 1
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
        if self._most_drafts(self.running):
            return False
        return (
            not self.num_waiting
            and all(one.is_prefilled and one.num_to_draw >= num_steps for one in self.running)
            and any(self.running)
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
        if rows:
            return rows, True
        rows = self._decode_rows()
        if rows or self._num_in_flight:
            return rows, False
        # Whoever could decode may not share a step with one that is still prefilled.
        return self._prefill_rows(now_s), True

    def _may_prefill(self) -> bool:
        """Decode comes first: after `max_prefill_steps` prefill steps, if anybody can decode."""
        if self._num_prefills < self.ask.max_prefill_steps:
            return True
        if not self.ask.enable_chunked_prefill and not all(
            one.is_prefilled for one in self.running
        ):
            return True
        return not any(self._can_decode(one) for one in self.running)

    def _can_decode(self, request: Request) -> bool:
        return request.is_prefilled and request.num_to_draw > 0

    def _rank(self, request: Request) -> tuple[bool, int, int]:
        return rank(request, by_priority=self.ask.scheduling_policy == "priority")

    def _prefill_rows(self, now_s: float) -> list[StepRow]:
        """Chunks of running requests, then of newly admitted ones, up to a program's R."""
        chunks = PrefillChunks(self.geometry, self.ask, self.admission)
        most = self._most_others()
        prefilling = sorted((one for one in self.running if not one.is_prefilled), key=self._rank)
        for request in prefilling:
            if chunks.may_add(request, most):
                chunks.add(request)
        while chunks.has_room and (request := self._next_to_admit()) is not None:
            if not chunks.may_add(request, most) or not self._admit(request, now_s):
                break
            chunks.add(request)
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
        if any(one.options.latency_sensitive for one in self.running):
            return self.ask.latency_max_num_seqs
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
        """The next token of everybody who can decode, with drafts where that is due."""
        ready = sorted((one for one in self.running if self._can_decode(one)), key=self._rank)
        sharing = self._sharing(ready)
        most_drafts = self._most_drafts(sharing)
        if most_drafts and self._num_in_flight:
            return []  # drafts follow the last token, which is not there yet
        rows: list[StepRow] = []
        for request in sharing:
            if request.slot is None:
                continue  # preempted for one before it
            start = request.num_scheduled
            drafts = self._drafts(request, most_drafts)
            if not drafts and not self._make_room(request, start, start + 1):
                if self._num_in_flight:
                    return []  # what is in flight may end somebody
                continue
            rows.append(
                StepRow(request=request, start=start, end=start + 1, draws=True, drafts=drafts)
            )
        return [row for row in rows if row.request.slot is not None]

    def _most_drafts(self, requests: Sequence[Request]) -> int:
        """How many tokens each of the requests may draft in the next step."""
        widths = self.geometry.verify_widths
        if self._drafter is None or not requests or len(requests) > widths[-1]:
            return 0
        due = any(self._drafter.is_due(one) and one.num_to_draw > 1 for one in requests)
        return self._drafter.num_tokens(len(requests)) if due else 0

    def _drafts(self, request: Request, most: int) -> tuple[int, ...]:
        """Drafts that have pages; none where another request would have to give up its own."""
        drafts: tuple[int, ...] = ()
        most = min(most, request.num_to_draw - 1)
        if most > 0 and self._drafter is not None:
            drafts = self._drafter.drafts(request, most)
            start = request.num_scheduled
            if drafts and not self.pages.extend(slot_of(request), start, start + 1 + len(drafts)):
                drafts = ()
        request.num_undrafted = 0 if drafts else request.num_undrafted + 1
        return drafts

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
        """Who gives up its pages: the last by class and priority, there who generated least."""
        return max(
            self.running,
            key=lambda one: (self._rank(one)[:2], -len(one.output_ids), one.order),
        )

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
