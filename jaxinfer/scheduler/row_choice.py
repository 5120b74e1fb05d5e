"""HOST. Who gets a row in the next step, who is admitted for it, and who gives up pages for it.

Order: latency-sensitive requests, priority, arrival (`waiting_queue.rank`). Decode comes first: at
most `max_prefill_steps` prefill steps lie between two decode steps. Knows the board; results and
ends of requests are the scheduler's.
"""

from collections.abc import Sequence

from jaxinfer.scheduler.board import Board
from jaxinfer.scheduler.drafting import Drafter
from jaxinfer.scheduler.planning import StepRow, slot_of
from jaxinfer.scheduler.prefill_chunks import PrefillChunks
from jaxinfer.scheduler.request import Request

MAX_PREEMPTIONS = 4  # of a request before others are preferred
MAX_TURNS_LEFT_OUT = 64  # of a request that has a slot, before it shares a step all the same


class RowChoice:
    """Chooses rows, step by step.

    num_preemptions: requests that had to give up their pages so far.
    """

    def __init__(self, board: Board, drafter: Drafter | None) -> None:
        self._board = board
        self._drafter = drafter
        self._num_prefills = 0  # prefill steps since the last decode step
        self._num_in_flight = 0
        self.num_preemptions = 0

    def choose(self, now_s: float, num_in_flight: int) -> tuple[list[StepRow], bool]:
        """The rows of the next step, and whether they are prefilled; none where there is nothing to
        run before a result comes, or at all.

        num_in_flight: steps that were launched and whose result has not come.
        """
        self._num_in_flight = num_in_flight
        rows = self._prefill_rows(now_s) if self._may_prefill() else []
        is_prefill = bool(rows)
        rows = rows or self._decode_rows()
        if rows:
            self._num_prefills = self._num_prefills + 1 if is_prefill else 0
        return rows, is_prefill

    def _may_prefill(self) -> bool:
        """Decode comes first: after `max_prefill_steps` prefill steps, if anybody can decode."""
        if self._num_prefills < self._board.ask.max_prefill_steps:
            return True
        if not self._board.ask.enable_chunked_prefill and not all(
            one.is_prefilled for one in self._board.running
        ):
            return True
        # Whoever could decode may not share a step with one that is still prefilled.
        return not self.sharing([one for one in self._board.running if self._can_decode(one)])

    def _can_decode(self, request: Request) -> bool:
        return request.is_prefilled and request.num_to_draw > 0

    def _prefill_rows(self, now_s: float) -> list[StepRow]:
        """Chunks of running requests, then of newly admitted ones, up to a program's R; those of
        latency-sensitive requests before all others, which then share the step with them."""
        chunks = PrefillChunks(self._board.geometry, self._board.ask, self._board.admission)
        prefilling = sorted(
            (one for one in self._board.running if not one.is_prefilled), key=self._board.rank
        )
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
        return self._board.waiting.first() if None in self._board.slots else None

    def _admit(self, request: Request, now_s: float) -> bool:
        slot = self._board.slots.index(None)
        if not self._board.admission.admit(request, slot, spare=self._num_spare()):
            return False
        self._board.waiting.admit(request)
        request.slot = slot
        request.admitted_s = now_s if request.admitted_s is None else request.admitted_s
        self._board.slots[slot] = request
        self._board.sampling.set(slot, request)
        return True

    def _num_spare(self) -> int:
        """Pages that stay free where none are promised: one for each request that needs more."""
        if self._board.ask.admission == "reserve":
            return 0
        size = self._board.geometry.page_tokens
        return sum(
            -(-one.max_cached_tokens // size) > -(-one.num_scheduled // size)
            for one in self._board.running
        )

    def _most_others(self) -> int | None:
        """How many requests may share a step with latency-sensitive ones; None for any number.

        One where none may and somebody has been left out for long, so that nobody waits for ever.
        """
        most, running = self._board.ask.latency_max_num_seqs, self._board.running
        if most is None or not any(_is_urgent(one) for one in running):
            return None
        newest = max(one.last_turn for one in running)
        waits = any(newest - one.last_turn > MAX_TURNS_LEFT_OUT for one in running)
        return max(most, int(waits))

    def sharing(self, requests: Sequence[Request]) -> list[Request]:
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
        ready = sorted(
            (one for one in self._board.running if self._can_decode(one)), key=self._board.rank
        )
        sharing = self.sharing(ready)
        most_drafts = self.most_drafts(sharing)
        if most_drafts and self._num_in_flight and self._drafter and not self._drafter.on_device:
            return []  # drafts follow the last token, which is not there yet
        for request in sharing:
            start = request.num_scheduled
            if request.slot is None:
                continue  # preempted for one before it
            if not self._make_room(request, start, start + 1) and self._num_in_flight:
                return []  # what is in flight may end somebody
        # Drafts only now: everybody has the page of the next token.
        rows = [self._row(request, most_drafts) for request in sharing if request.slot is not None]
        # Longest first: attention on a CPU takes neighbours together, as long as the longest needs.
        return sorted(rows, key=lambda row: -row.start)

    def _row(self, request: Request, most_drafts: int) -> StepRow:
        start, drafts = request.num_scheduled, self._drafts(request, most_drafts)
        return StepRow(request=request, start=start, end=start + 1, draws=True, drafts=drafts)

    def most_drafts(self, requests: Sequence[Request]) -> int:
        """How many tokens each of the requests may draft in the next step."""
        widths = self._board.geometry.verify_widths
        if self._drafter is None or not requests or len(requests) > widths[-1]:
            return 0
        due = any(self._drafter.is_due(one) and one.num_to_draw > 1 for one in requests)
        return self._drafter.num_tokens(len(requests)) if due else 0

    def _drafts(self, request: Request, most: int) -> tuple[int, ...]:
        """Drafts that have pages; none where another request would have to give up its own."""
        drafts: tuple[int, ...] = ()
        most = 0 if request.may_not_draft else min(most, request.num_to_draw - 1)
        request.may_not_draft = False
        if most > 0 and self._drafter is not None:
            drafts = self._drafter.drafts(request, most)
            start = request.num_scheduled
            if drafts and not self._board.pages.extend(
                slot_of(request), start, start + 1 + len(drafts)
            ):
                drafts = ()
        request.num_undrafted = 0 if drafts else request.num_undrafted + 1
        return drafts

    def _make_room(self, request: Request, start: int, end: int) -> bool:
        """Pages for the next tokens; others, or the request itself, are preempted if need be."""
        while not self._board.pages.extend(slot_of(request), start, end):
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
            return (True, self._board.rank(one)[:2], -len(one.output_ids), one.order)

        return max(self._board.running, key=last_to_keep)

    def _preempt(self, request: Request) -> None:
        slot = slot_of(request)
        self.num_preemptions += 1
        self._board.admission.preempt(request, slot)
        self._board.slots[slot], request.slot = None, None
        self._board.waiting.add(request)


def _is_urgent(request: Request) -> bool:
    return request.options.latency_sensitive
