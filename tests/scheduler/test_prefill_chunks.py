"""The chunks of one step: as many rows as a program has, no more of one prompt than is allowed."""

from typing import Any

import pytest

from jaxinfer.config.engine_config import EngineConfig
from jaxinfer.scheduler.admission import Admission
from jaxinfer.scheduler.page_tables import PageTables
from jaxinfer.scheduler.prefill_chunks import PrefillChunks
from jaxinfer.scheduler.request import Request
from tests.scheduler.fake_device import VOCAB
from tests.scheduler.requests import traced
from tests.support.records import geometry


class Gathering:
    """Chunks and what they are gathered with."""

    def __init__(self, ask: dict[str, Any] | None = None, **shape: Any) -> None:
        made = geometry(**{"page_tokens": 4, "chunk_tokens": 4, "prefill_rows": (1, 4), **shape})
        self.ask, self.geometry = EngineConfig(**(ask or {})), made
        self.admission = Admission(pages=PageTables(made), ask=self.ask, vocab_size=VOCAB)
        self.num_slots = 0
        self.start_step()

    def start_step(self) -> None:
        self.chunks = PrefillChunks(self.geometry, self.ask, self.admission)

    def add(self, request: Request) -> Request:
        if request.slot is None:
            assert self.admission.admit(request, self.num_slots, spare=0)
            request.slot, self.num_slots = self.num_slots, self.num_slots + 1
        self.chunks.add(request)
        return request

    def spans(self) -> list[tuple[int, int, int]]:
        return [(row.request.order, row.start, row.end) for row in self.chunks.rows()]


def test_consecutive_chunks_of_a_prompt() -> None:
    step = Gathering()
    step.add(traced(1, 14))
    assert step.spans() == [(1, 0, 4), (1, 4, 8), (1, 8, 12), (1, 12, 14)]
    assert [row.draws for row in step.chunks.rows()] == [False, False, False, True]
    assert not step.chunks.has_room


@pytest.mark.parametrize(("prompt", "rows"), [(3, 1), (7, 1), (11, 1), (13, 4), (40, 4)])
def test_rows_beyond_a_program_wait(prompt: int, rows: int) -> None:
    step = Gathering()
    one = step.add(traced(1, prompt))
    assert len(step.spans()) == rows
    assert one.num_registered == min(4 * rows, prompt) // 4, "only what runs is noted"


def test_a_program_of_each_number_of_rows() -> None:
    step = Gathering(prefill_rows=(1, 2, 3))
    step.add(traced(1, 8))
    assert len(step.spans()) == 2 and step.chunks.has_room
    step.add(traced(2, 3))
    assert len(step.spans()) == 3 and not step.chunks.has_room


def test_what_waited_goes_on_from_where_it_was() -> None:
    step = Gathering()
    one = step.add(traced(1, 10))
    assert step.spans() == [(1, 0, 4)]
    one.num_scheduled = 4
    step.start_step()
    step.add(one)
    assert step.spans() == [(1, 4, 8)]


def test_no_row_draws_for_a_request_that_draws_nothing() -> None:
    step = Gathering()
    step.add(traced(1, 3, max_new_tokens=0))
    assert [row.draws for row in step.chunks.rows()] == [False]


@pytest.mark.parametrize(("threshold", "chunks"), [(1, 1), (7, 1), (8, 2), (16, 4), (99, 4)])
def test_a_long_prompt_leaves_rows_to_others(threshold: int, chunks: int) -> None:
    step = Gathering({"long_prefill_token_threshold": threshold})
    step.add(traced(1, 40))
    step.add(traced(2, 40))
    step.add(traced(3, 40))
    step.add(traced(4, 40))
    rows = step.spans()
    assert [order for order, _, _ in rows].count(1) == chunks and len(rows) == 4


def test_a_prompt_shares_what_the_same_step_computes_before_it() -> None:
    text = list(range(300, 320))
    step = Gathering()
    step.add(traced(1, text[:5]))
    assert step.spans() == [(1, 0, 4)] and step.chunks.has_room
    # One row is certain to run: its page may be shared. The second waits with the next ones.
    two = step.add(traced(2, text[:14]))
    assert two.num_cached_tokens == 4
    assert step.spans() == [(1, 0, 4), (1, 4, 5), (2, 4, 8), (2, 8, 12)]
    tables = step.admission.pages.tables[0]
    assert tables[1, 0] == tables[0, 0] and tables[1, 1] != tables[0, 1]


def test_what_may_not_run_is_not_shared() -> None:
    text = list(range(300, 320))
    step = Gathering()
    step.add(traced(1, text[:9]))
    two = step.add(traced(2, text[:9]))
    assert two.num_cached_tokens == 4, "the second page is of a row that was not certain"
    assert step.spans()[:2] == [(1, 0, 4), (1, 4, 8)] and len(step.spans()) == 4


def test_a_window_is_kept_for_the_first_chunk_of_the_step() -> None:
    step = Gathering(windows=(4,))
    one = step.add(traced(1, 32))
    one.num_scheduled = 16
    step.start_step()
    step.add(one)
    assert [start for _, start, _ in step.spans()] == [16, 20, 24, 28]
    assert step.admission.pages.held(0)[0].first == 3, "position 16 sees 13"


def test_few_others_beside_latency_sensitive_requests() -> None:
    step = Gathering()
    urgent, first, second = (
        traced(1, 4, latency_sensitive=True),
        traced(2, 4),
        traced(3, 4),
    )
    assert step.chunks.may_add(first, 1) and not step.chunks.may_add(first, 0)
    step.add(urgent)
    assert step.chunks.may_add(first, 1), "it does not count itself"
    step.add(first)
    assert not step.chunks.may_add(second, 1) and step.chunks.may_add(second, 2)
    assert step.chunks.may_add(second, None) and step.chunks.may_add(urgent, 0)
