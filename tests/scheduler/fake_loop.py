"""The engine's loop without an engine: steps launched ahead of what was read, and checks.

Steps run on a `FakeDevice` when they are launched; what they drew is handed over later, in order.
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from jaxinfer.config.step_plan import DecodePlan, PrefillPlan, StepResult, VerifyResult
from jaxinfer.scheduler import row_choice
from jaxinfer.scheduler.planning import Step, StepRow
from jaxinfer.scheduler.prefix_index import extend_digests
from jaxinfer.scheduler.request import FinishReason, Request
from jaxinfer.scheduler.scheduler import Scheduler
from tests.scheduler.fake_device import FakeDevice


@dataclass(frozen=True, kw_only=True)
class Flight:
    """A step that was launched and not read, and the slots of its rows."""

    step: Step
    drawn: StepResult | VerifyResult
    slots: tuple[int, ...]


class FakeLoop:
    """Drives a scheduler and a device.

    depth: flights that are under way at most. burst: decode steps of a flight in a steady state.
    ends_text: says of a request that got a token whether its text ends there (a stop string).
    """

    def __init__(
        self,
        scheduler: Scheduler,
        device: FakeDevice,
        *,
        depth: int = 1,
        burst: int = 1,
        ends_text: Callable[[Request], bool] = lambda request: False,
    ) -> None:
        self.scheduler = scheduler
        self.device = device
        self.depth = depth
        self.burst = burst
        self.ends_text = ends_text
        self.flights: deque[list[Flight]] = deque()
        self.steps: list[Step] = []

    def add(self, *requests: Request) -> None:
        """Queues requests that the pool can serve, each by itself."""
        for request in requests:
            assert self.scheduler.why_never(request.max_cached_tokens) is None
            self.scheduler.add(request)

    def launch_ahead(self, now_s: float = 0.0) -> None:
        """Launches until `depth` flights are under way or nothing more can be planned."""
        while len(self.flights) < self.depth:
            most = self.burst if self.scheduler.is_steady(self.burst) else 1
            flight: list[Flight] = []
            while len(flight) < most and (step := self.scheduler.schedule(now_s)) is not None:
                flight.append(self._launch(step))
                self.check()
            if not flight:
                self.check()
                return
            self.flights.append(flight)
            if most > 1 and self.scheduler.ask.admission == "reserve":
                rows = [[row.request for row in one.step.rows] for one in flight]
                assert rows == [rows[0]] * most, "the state was not steady"

    def read(self) -> list[Request]:
        """Takes in the oldest flight: who came, in order, once for each token."""
        came = []
        for flight in self.flights.popleft() if self.flights else ():
            for request in self.scheduler.update(flight.step, flight.drawn):
                came.append(request)
                if not request.is_finished and self.ends_text(request):
                    request.finish_reason = "stop"
                if request.is_finished:
                    self.finish(request)
        self.check()
        return came

    def advance(self) -> Step | None:
        """Launches ahead and reads the oldest flight: the step launched last, if any was."""
        before = len(self.steps)
        self.launch_ahead()
        self.read()
        return self.steps[-1] if len(self.steps) > before else None

    def run_out(self, *, most: int = 500) -> list[Step]:
        """Goes on until nothing is left: the steps it took."""
        before = len(self.steps)
        while self.scheduler.has_work or self.flights:
            assert len(self.steps) < before + most, "it does not end"
            self.advance()
        return self.steps[before:]

    def end(self, request: Request, reason: FinishReason = "abort") -> None:
        """Ends a request from outside."""
        request.finish_reason = reason
        self.finish(request)
        self.check()

    def finish(self, request: Request) -> None:
        """What the engine does for a request that has its finish reason."""
        self.scheduler.finish(request)
        self.device.forget(request.order)

    def _launch(self, step: Step) -> Flight:
        slots = tuple(row.request.slot for row in step.rows)
        assert all(slot is not None for slot in slots)
        self._check_writers(step)
        self._check_shares(step)
        self.steps.append(step)
        return Flight(step=step, drawn=self.device.run(step), slots=slots)  # type: ignore[arg-type]

    # --- checks -------------------------------------------------------------------------------

    def check(self) -> None:
        """Every page has one state, every holder a table, every promise a page."""
        pages, made = self.scheduler.pages, self.scheduler.geometry
        assert not pages.tables[:, made.num_slots].any(), "the empty row's table"
        for slot, request in enumerate(self.scheduler.slots):
            assert request is None or request.slot == slot
            assert request is not None or not pages.tables[:, slot].any()
        for group, pool in enumerate(pages.pools):
            held = pages.tables[group][pages.tables[group] > 0].tolist()
            holders = Counter(held)
            every = sorted([*pool._empty, *pool._kept, *holders])
            assert every == list(range(1, made.num_pages[group])), "pages partition the pool"
            assert [holders[page] for page in range(len(pool._holders))] == pool._holders
            shares = len(held) - len(holders) if made.group_windows[group] else 0
            promised = int(pages._left[group].sum())
            assert promised == pool._promised and (pages._left[group] >= 0).all()
            assert promised + shares <= len(pool._empty) + len(pool._kept), "promised and not there"
            assert pool.num_used == len(holders)
            assert pool.num_unpromised == pool.num_usable - len(holders) - shares - promised
        self._check_flights()

    def _check_flights(self) -> None:
        """Pages of steps that were not read are still their requests'.

        Under a window those behind it are not: a later step may write them, and on the device that
        comes after what the earlier one read.
        """
        pages = self.scheduler.pages
        for flight in (one for burst in self.flights for one in burst):
            for place, (row, slot) in enumerate(zip(flight.step.rows, flight.slots, strict=True)):
                assert row.request.slot == slot, "a slot is left while a step is under way"
                last = -(-end_of(row) // self.scheduler.geometry.page_tokens)
                for group, first in enumerate(pages._first[:, slot]):
                    used = flight.step.plan.tables[group, place, first:last]
                    assert (pages.tables[group, slot, first:last] == used).all()

    def _check_writers(self, step: Step) -> None:
        """A page that is written is in one table.

        Only a prompt that begins with what another row of the same prefill step computes has it
        too, and starts behind it: a step writes all its pages before it reads any.
        """
        pages, size = self.scheduler.pages, self.scheduler.geometry.page_tokens
        for group, table in enumerate(step.plan.tables):
            writers: dict[int, tuple[int, int | None]] = {}
            for place, row in enumerate(step.rows):
                for column in range(row.start // size, -(-end_of(row) // size)):
                    mine = (column, row.request.slot)
                    assert writers.setdefault(int(table[place, column]), mine) == mine
            every = pages.tables[group]
            for slot, column in np.argwhere(np.isin(every, list(writers))).tolist():
                owned, writer = writers[int(every[slot, column])]
                reader = self.scheduler.slots[slot]
                assert slot == writer or (isinstance(step.plan, PrefillPlan) and reader is not None)
                assert column == owned
                if slot != writer and reader is not None:
                    assert reader.num_computed >= (column + 1) * size, "a page has two writers"

    def _check_shares(self, step: Step) -> None:
        """While a latency-sensitive request runs, few others share its step; one that was left out
        for long may where none may."""
        most = self.scheduler.ask.latency_max_num_seqs
        if most is None or not any(r.options.latency_sensitive for r in self.scheduler.running):
            return
        most = max(most, int(len(self.steps) >= row_choice.MAX_TURNS_LEFT_OUT))
        rows = [row.request for row in step.rows]
        assert len({one for one in rows if not one.options.latency_sensitive}) <= most

    def check_drained(self) -> None:
        """Nothing is held or promised; what the prefix cache says of a page is what is in it."""
        scheduler = self.scheduler
        assert not scheduler.has_work and not any(scheduler.slots) and not self.device.swapped
        assert not scheduler._timed and not scheduler.waiting._entries
        assert scheduler._num_in_flight == 0 and not scheduler.pages.tables.any()
        for pool in scheduler.pages.pools:
            assert pool.num_used == 0 and pool.num_unpromised == pool.num_usable

    def check_prefix_cache(self, requests: list[Request]) -> None:
        """Every page that can be found holds the tokens that its digest names."""
        size = self.scheduler.geometry.page_tokens
        contents: dict[bytes, np.ndarray] = {}
        for request in requests:
            alone, names = self.device.alone(request), []
            extend_digests(names, alone.tokens, size)
            for column, name in enumerate(names):
                contents[name] = alone.digests[column * size : (column + 1) * size]
        for pool, pages in zip(self.scheduler.pages.pools, self.device.pages, strict=True):
            for name, page in pool._page_of.items():
                assert (pages[page] == contents[name]).all()


def end_of(row: StepRow) -> int:
    """One past the last position that a row writes."""
    return row.end + len(row.drafts)


def kinds(loop: FakeLoop) -> str:
    """The launched steps: p for prefill, d for decode, v for verify."""
    letters = {PrefillPlan: "p", DecodePlan: "d"}
    return "".join(letters.get(type(one.plan), "v") for one in loop.steps)


def orders(step: Step | None) -> list[int]:
    """Whose rows a step has, each named once."""
    return [] if step is None else list(dict.fromkeys(row.request.order for row in step.rows))
