"""HOST. Who runs in the next step. No jax, no text: plans out, results in.

                     ┌────────── waiting ──────────┐
      add ──────────▶│ first come, first served    │
                     └──────────────┬──────────────┘
                  a slot and the worst case of pages are free
                                    ▼
    slot 0 │ prefill: chunks of T tokens, several a step │──▶ decode: one token a step ──▶ finish
    slot 1 │ ...                                         │        slot and pages are free again,
    slot B-1                                             │        refilled before the next step

Prefill and decode steps alternate while there is work for both, so that a long prompt does not
stall running requests. Row positions: committed tokens [0, num_computed) have keys and values in
pages; the step plans the next ones; pages past them belong to nobody.
"""

from collections import deque

import numpy as np

from jaxinfer.config.geometry import Geometry
from jaxinfer.config.step_plan import DecodePlan, PrefillPlan, StepResult
from jaxinfer.scheduler.page_tables import PageTables
from jaxinfer.scheduler.request import Request, TokenLogprobs
from jaxinfer.scheduler.sampling_rows import SlotSampling

Plan = PrefillPlan | DecodePlan


class Scheduler:
    """Requests, slots and pages."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.waiting: deque[Request] = deque()
        self.slots: list[Request | None] = [None] * geometry.num_slots
        self.pages = PageTables(geometry)
        self._sampling = SlotSampling(geometry.num_slots)
        self._chunks: list[tuple[Request, int, int]] = []  # of the prefill plan under way
        self._prefilled_last = False

    @property
    def running(self) -> list[Request]:
        """Requests that have a slot, by slot."""
        return [request for request in self.slots if request is not None]

    @property
    def has_work(self) -> bool:
        """True while any request waits or runs."""
        return bool(self.waiting) or any(self.slots)

    def add(self, request: Request) -> None:
        """Queues a request; `why_never` must have said None."""
        self.waiting.append(request)

    def why_never(self, tokens: int) -> str | None:
        """Why a request of `tokens` tokens can never be admitted, or None."""
        for pool, need in zip(self.pages.pools, self.pages.needs(tokens), strict=True):
            if need > pool.num_usable:
                return (
                    f"the request needs {need} pages of the KV cache, the pool has "
                    f"{pool.num_usable}; lower max_tokens or raise num_gpu_blocks_override"
                )
        return None

    def schedule(self, now_s: float = 0.0) -> Plan | None:
        """The next step, or None when there is nothing to run."""
        self._admit(now_s)
        chunks = self._next_chunks()
        decoding = [request for request in self.running if request.is_prefilled]
        if chunks and not (decoding and self._prefilled_last):
            self._prefilled_last = True
            return self._plan_prefill(chunks)
        self._prefilled_last = False
        return self._plan_decode(decoding) if decoding else None

    def update_prefill(self, result: StepResult) -> list[Request]:
        """Advances the chunks of the last prefill plan; returns requests that got a token."""
        drew = []
        for row, (request, _, end) in enumerate(self._chunks):
            request.num_computed = max(request.num_computed, end)
            if end == len(request.prompt_ids) and not request.is_finished:
                self._accept(request, result, row)
                drew.append(request)
        self._chunks = []
        return drew

    def update_decode(self, plan: DecodePlan, result: StepResult) -> list[Request]:
        """Advances every planned slot by one token; returns the requests."""
        drew = []
        for row, slot in enumerate(plan.slots[plan.slots < self.geometry.num_slots]):
            request = self.slots[slot]
            assert request is not None, "a planned slot is empty"
            request.num_computed += 1
            self._accept(request, result, row)
            drew.append(request)
        return drew

    def finish(self, request: Request) -> None:
        """Takes a request that has its finish reason out of its slot or queue; frees its pages."""
        if request.slot is None:
            if request in self.waiting:
                self.waiting.remove(request)
            return
        self.pages.release(request.slot)
        self.slots[request.slot] = None
        request.slot = None

    def _admit(self, now_s: float) -> None:
        while self.waiting:
            request = self.waiting[0]
            free = next((i for i, held in enumerate(self.slots) if held is None), None)
            if free is None or not self.pages.reserve(free, request.max_cached_tokens):
                return
            self.waiting.popleft()
            request.slot, request.admitted_s = free, now_s
            self.slots[free] = request
            self._sampling.set(free, request)

    def _next_chunks(self) -> list[tuple[Request, int, int]]:
        """(request, start, end) of the next chunks, oldest request first, as many as a step has."""
        chunk, most = self.geometry.chunk_tokens, self.geometry.prefill_rows[-1]
        chunks = []
        for request in sorted(self.running, key=lambda r: r.order):
            for start in range(request.num_computed, len(request.prompt_ids), chunk):
                if len(chunks) == most:
                    return chunks
                chunks.append((request, start, min(start + chunk, len(request.prompt_ids))))
        return chunks

    def _plan_prefill(self, chunks: list[tuple[Request, int, int]]) -> PrefillPlan:
        geometry = self.geometry
        rows = max(count for count in geometry.prefill_rows if count <= len(chunks))
        self._chunks = chunks = chunks[:rows]
        tokens = np.zeros((rows, geometry.chunk_tokens), np.int32)
        slots = np.full(rows, geometry.num_slots, np.int32)
        for row, (request, start, end) in enumerate(chunks):
            tokens[row, : end - start] = request.prompt_ids[start:end]
            # From the request's first chunk of this step: that one still reads its window.
            self.pages.extend(_slot(request), request.num_computed, end)
            if end == len(request.prompt_ids):
                slots[row] = _slot(request)
        held = np.array([_slot(request) for request, _, _ in chunks], np.int32)
        return PrefillPlan(
            tokens=tokens,
            starts=np.array([start for _, start, _ in chunks], np.int32),
            lengths=np.array([end - start for _, start, end in chunks], np.int32),
            tables=self.pages.tables[:, held],
            slots=slots,
            sampling=self._sampling.rows(held),
        )

    def _plan_decode(self, decoding: list[Request]) -> DecodePlan:
        widths = self.geometry.decode_widths
        width = min(width for width in widths if width >= len(decoding))
        slots = np.full(width, self.geometry.num_slots, np.int32)
        positions = np.zeros(width, np.int32)
        for row, request in enumerate(decoding):
            slots[row], positions[row] = _slot(request), request.num_computed
            self.pages.extend(_slot(request), request.num_computed, request.num_computed + 1)
        return DecodePlan(
            slots=slots,
            positions=positions,
            tables=self.pages.tables[:, slots],
            sampling=self._sampling.rows(slots),
        )

    def _accept(self, request: Request, result: StepResult, row: int) -> None:
        if not result.finite[row]:
            request.finish_reason = "error"
            request.error = (
                f"NaN or Inf in the logits after {request.num_tokens} tokens; "
                "the checkpoint's weights or the dtype are at fault (try dtype='float32')"
            )
            return
        token = int(result.tokens[row])
        if request.params.logprobs is not None:
            request.logprobs.append(_logprobs(result, row, token, request.params.logprobs))
        request.accept_token(token)


def _slot(request: Request) -> int:
    assert request.slot is not None, "a planned request has no slot"
    return request.slot


def _logprobs(result: StepResult, row: int, token: int, count: int) -> TokenLogprobs:
    ids, values = result.best_ids[row, :count].tolist(), result.best_logprobs[row, :count].tolist()
    best: dict[int, float] = {}
    for candidate, value in zip(ids, values, strict=True):
        best.setdefault(candidate, value)  # a vocabulary smaller than the row repeats id 0 at -inf
    return TokenLogprobs(
        token_id=token, logprob=float(result.logprobs[row]), best=tuple(best.items())
    )
