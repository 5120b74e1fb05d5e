"""A device that computes nothing: its pages hold who wrote them, and reads are checked.

A token of a prompt is `order * STRIDE + position`, so that a row tells whose it is. Every position
that attention would read through the page table must hold what that request wrote there.
"""

import numpy as np

from jaxinfer.config.geometry import Geometry
from jaxinfer.config.step_plan import DecodePlan, PrefillPlan, StepResult
from jaxinfer.scheduler.request import Request
from jaxinfer.scheduler.scheduler import Scheduler

STRIDE = 1000
EOS = 1
PLAIN = 5


def prompt_of(order: int, length: int) -> list[int]:
    """A prompt whose tokens tell their request and position."""
    return [order * STRIDE + position for position in range(length)]


class FakeDevice:
    """Runs plans of a scheduler. `ends`: by order, after how many tokens EOS comes."""

    def __init__(self, geometry: Geometry, ends: dict[int, int] | None = None) -> None:
        self.geometry = geometry
        self.ends = ends or {}
        self.pages = [np.full((n, geometry.page_tokens), -1, np.int64) for n in geometry.num_pages]
        self.chunks: dict[int, list[tuple[int, int]]] = {}
        self.decoded: dict[int, list[int]] = {}

    def step(self, scheduler: Scheduler) -> tuple[PrefillPlan | DecodePlan, list[Request]] | None:
        """Schedules, runs, updates and finishes, as the engine does: the plan and who drew."""
        plan = scheduler.schedule()
        if plan is None:
            return None
        if isinstance(plan, PrefillPlan):
            drew = scheduler.update_prefill(self._prefill(plan, scheduler))
        else:
            drew = scheduler.update_decode(plan, self._decode(plan, scheduler))
        for request in drew:
            if request.is_finished:
                scheduler.finish(request)
        return plan, drew

    def _prefill(self, plan: PrefillPlan, scheduler: Scheduler) -> StepResult:
        geometry, rows = self.geometry, plan.tokens.shape[0]
        assert rows in geometry.prefill_rows and plan.tokens.shape == (rows, geometry.chunk_tokens)
        owners = (plan.tokens[:, 0] // STRIDE).tolist()
        spans = [(int(s), int(n)) for s, n in zip(plan.starts, plan.lengths, strict=True)]
        running = {request.order: request for request in scheduler.running}
        for row, (order, (start, length)) in enumerate(zip(owners, spans, strict=True)):
            request, end = running[order], start + length
            assert plan.tokens[row, :length].tolist() == request.prompt_ids[start:end]
            is_last = end == len(request.prompt_ids)
            assert plan.slots[row] == (request.slot if is_last else geometry.num_slots)
            self._check_sampling(plan, row, request)
            self.chunks.setdefault(order, []).append((start, length))
        self._write_then_read(plan.tables, owners, spans)
        return self._draw([running[order] for order in owners])

    def _decode(self, plan: DecodePlan, scheduler: Scheduler) -> StepResult:
        assert plan.slots.size == plan.positions.size and plan.slots.size in (
            self.geometry.decode_widths
        )
        busy = plan.slots[plan.slots < self.geometry.num_slots].tolist()
        assert len(set(busy)) == len(busy), "a slot has two rows"
        requests = [scheduler.slots[slot] if slot in busy else None for slot in plan.slots]
        spans = []
        for row, request in enumerate(requests):
            position = int(plan.positions[row])
            spans.append((position, int(request is not None)))
            if request is None:
                assert not plan.tables[:, row].any() and not plan.sampling.temperature[row]
                continue
            self._check_sampling(plan, row, request)
            self.decoded.setdefault(request.order, []).append(position)
        owners = [request.order if request else -1 for request in requests]
        self._write_then_read(plan.tables, owners, spans)
        return self._draw(requests)

    def _check_sampling(self, plan: PrefillPlan | DecodePlan, row: int, request: Request) -> None:
        assert plan.sampling.seeds[row].tolist() == [request.seed, 0]
        assert plan.sampling.temperature[row] == np.float32(request.params.temperature)

    def _write_then_read(
        self, tables: np.ndarray, owners: list[int], spans: list[tuple[int, int]]
    ) -> None:
        size = self.geometry.page_tokens
        for pages, table in zip(self.pages, tables, strict=True):
            for row, (start, length) in enumerate(spans):
                positions = np.arange(start, start + length)
                columns = table[row, positions // size]
                assert (columns > 0).all(), "a token would be written to the null page"
                pages[columns, positions % size] = owners[row] * STRIDE + positions
        groups = zip(self.pages, tables, self.geometry.group_windows, strict=True)
        for pages, table, window in groups:
            for row, (start, length) in enumerate(spans):
                first = max(0, start - window + 1) if window and length else 0
                positions = np.arange(first, start + length) if length else np.arange(0)
                found = pages[table[row, positions // size], positions % size]
                assert (found == owners[row] * STRIDE + positions).all(), "another's page is read"

    def _draw(self, requests: list[Request | None]) -> StepResult:
        rows = len(requests)
        tokens = np.zeros(rows, np.int32)
        for row, request in enumerate(requests):
            if request is not None:
                is_end = len(request.output_ids) + 1 == self.ends.get(request.order)
                tokens[row] = EOS if is_end else PLAIN
        return StepResult(
            tokens=tokens,
            finite=np.ones(rows, bool),
            logprobs=np.full(rows, -0.5, np.float32),
            best_ids=np.tile(np.arange(20, dtype=np.int32), (rows, 1)),
            best_logprobs=np.tile(-np.arange(20, dtype=np.float32), (rows, 1)),
        )
