"""The ways into a slot and out of it, one by one: pages, chores and counts."""

from typing import Any

import numpy as np
import pytest

from jaxinfer.config.engine_config import EngineConfig
from jaxinfer.config.step_plan import CopyPlan, SeatPlan, SwapPlan
from jaxinfer.scheduler.admission import Admission
from jaxinfer.scheduler.page_tables import PageTables
from jaxinfer.scheduler.request import Request
from tests.scheduler.fake_device import VOCAB
from tests.scheduler.requests import family, loop_of, traced
from tests.support.records import geometry


def admission_of(ask: dict[str, Any] | None = None, **shape: Any) -> Admission:
    made = geometry(**{"page_tokens": 4, "chunk_tokens": 4, "prefill_rows": (1, 4), **shape})
    return Admission(pages=PageTables(made), ask=EngineConfig(**(ask or {})), vocab_size=VOCAB)


def enter(admission: Admission, request: Request, slot: int, *, spare: int = 0) -> bool:
    entered = admission.admit(request, slot, spare=spare)
    if entered:
        request.slot = slot
    return entered


def compute(admission: Admission, request: Request, end: int) -> None:
    """What steps do for a request: pages up to `end`, their content noted."""
    assert request.slot is not None
    for start in range(request.num_scheduled, end, 4):
        assert admission.pages.extend(request.slot, start, min(start + 4, end))
    request.num_computed = request.num_scheduled = end
    admission.register(request, end)


@pytest.mark.parametrize(("chunk", "found"), [(16, 0), (4, 8)])
def test_small_pages_find_more_of_a_short_prompt_with_small_chunks(chunk: int, found: int) -> None:
    """Whole pages and whole chunks are shared; the last token is always computed."""
    loop = loop_of(page_tokens=4, chunk_tokens=chunk)
    requests = [traced(order, list(range(500, 510))) for order in (1, 2)]
    for one in requests:
        loop.add(one)
        loop.run_out()
    assert [one.num_cached_tokens for one in requests] == [0, found]


def leave(admission: Admission, request: Request) -> None:
    assert request.slot is not None
    admission.pages.release(request.slot)
    request.slot = None


def unpromised(admission: Admission) -> list[int]:
    return [pool.num_unpromised for pool in admission.pages.pools]


def kinds(admission: Admission) -> list[type]:
    return [type(chore) for chore in admission.take_chores()]


TEXT = list(range(300, 340))


# --- start ------------------------------------------------------------------------------------


def test_a_plain_request_starts_at_its_first_token_and_leaves_no_chore() -> None:
    admission = admission_of()
    one = traced(1, 10)
    assert enter(admission, one, 2)
    assert (one.num_scheduled, one.prefill_end, one.num_cached_tokens) == (0, 10, 0)
    assert admission.take_chores() == ()
    assert (admission.num_queries, admission.num_hits) == (10, 0)


@pytest.mark.parametrize(("mode", "tokens"), [("reserve", 31), ("optimistic", 13)])
def test_pages_for_the_worst_case_or_for_what_is_known(mode: str, tokens: int) -> None:
    admission = admission_of({"admission": mode})
    before = unpromised(admission)[0]
    assert enter(admission, traced(1, 12, max_new_tokens=20), 0)
    assert before - unpromised(admission)[0] == -(-tokens // 4)


def test_no_more_is_known_than_ever_comes() -> None:
    """Ten tokens of which the last needs no page: the eleventh never comes."""
    admission = admission_of({"admission": "optimistic"}, page_tokens=1)
    before = unpromised(admission)[0]
    assert enter(admission, traced(1, 10, max_new_tokens=1), 0)
    assert before - unpromised(admission)[0] == 10


def test_without_pages_nothing_is_changed() -> None:
    admission = admission_of(num_pages=(4,))
    assert enter(admission, traced(1, 4, max_new_tokens=1), 0, spare=2)
    before = unpromised(admission)
    two = traced(2, 12, max_new_tokens=1, presence_penalty=1.0)
    assert not enter(admission, two, 1)
    assert not enter(admission, traced(3, 4, max_new_tokens=1), 1, spare=2)
    assert unpromised(admission) == before and not admission.pages.tables[:, 1].any()
    assert admission.take_chores() == () and two.prefill_end == 0
    assert (admission.num_queries, two.num_registered) == (4, 0)


def test_what_draws_with_penalties_is_seated() -> None:
    admission = admission_of()
    one = traced(1, 3, presence_penalty=0.5, end_ids=(7,))
    assert enter(admission, one, 1)
    (chore,) = admission.take_chores()
    assert isinstance(chore, SeatPlan) and chore.slot == 1
    assert chore.recent[-3:].tolist() == one.prompt_ids
    assert np.flatnonzero(chore.seen).tolist() == one.prompt_ids
    assert chore.ends[0] == 1 << 7
    assert admission.take_chores() == (), "chores are done once"


# --- the prefix cache -------------------------------------------------------------------------


def test_a_prefix_that_is_there_is_taken_over() -> None:
    """BB-31 (vllm#7845): at least the last token is computed."""
    admission = admission_of()
    one, two = traced(1, TEXT[:16]), traced(2, TEXT[:16])
    assert enter(admission, one, 0)
    compute(admission, one, 16)
    assert enter(admission, two, 1)
    assert (two.num_scheduled, two.num_computed, two.num_cached_tokens) == (12, 12, 12)
    assert two.num_registered == 3 and two.prefill_end == 16
    tables = admission.pages.tables[0]
    assert tables[1, :3].tolist() == tables[0, :3].tolist() and tables[1, 3] == 0
    assert (admission.num_queries, admission.num_hits) == (32, 12)


def test_a_prefix_outlives_its_request() -> None:
    admission = admission_of()
    one, two = traced(1, TEXT[:9]), traced(2, TEXT[:12])
    assert enter(admission, one, 0)
    compute(admission, one, 9)
    leave(admission, one)
    assert enter(admission, two, 0) and two.num_cached_tokens == 8


def test_pages_of_the_output_are_found_by_the_next_turn() -> None:
    admission = admission_of()
    one = traced(1, TEXT[:6], max_new_tokens=9)
    assert enter(admission, one, 0)
    compute(admission, one, 6)
    for token in TEXT[6:12]:
        one.accept_token(token)
    compute(admission, one, 11)  # the last token has no keys and values yet
    leave(admission, one)
    turn = traced(2, TEXT[:20])
    assert enter(admission, turn, 0) and turn.num_cached_tokens == 8


@pytest.mark.parametrize("is_writer", [True, False])
def test_who_opts_out_neither_reads_nor_leaves_pages(is_writer: bool) -> None:
    admission = admission_of()
    one = traced(1, TEXT[:16], use_prefix_cache=not is_writer)
    two = traced(2, TEXT[:16], use_prefix_cache=is_writer)
    assert enter(admission, one, 0)
    compute(admission, one, 16)
    assert enter(admission, two, 1) and two.num_cached_tokens == 0
    assert (admission.num_queries, admission.num_hits) == (16, 0)


def test_the_switch() -> None:
    admission = admission_of({"enable_prefix_caching": False})
    one, two = traced(1, TEXT[:16]), traced(2, TEXT[:16])
    assert enter(admission, one, 0)
    compute(admission, one, 16)
    assert enter(admission, two, 1) and two.num_cached_tokens == 0
    assert one.page_digests == [] and admission.num_queries == 0


def test_whose_prompt_is_scored_computes_it() -> None:
    """BB-32 (vllm#6223): log-probabilities of a prompt come from computing it; others may read."""
    admission = admission_of()
    requests = [traced(order, TEXT[:16]) for order in (1, 2, 3)]
    for one in requests[:2]:
        one.num_prompt_logprobs = 2
    for slot, one in enumerate(requests):
        assert enter(admission, one, slot)
        compute(admission, one, 16)
    assert [one.num_cached_tokens for one in requests] == [0, 0, 12]


# --- siblings ---------------------------------------------------------------------------------


def led(admission: Admission, prompt: int, **changes: Any) -> list[Request]:
    """Two completions; the first is in slot 0 and its prompt in pages."""
    requests = family(1, prompt, 2, **changes)
    assert enter(admission, requests[0], 0)
    compute(admission, requests[0], prompt)
    admission.take_chores()
    return requests


def test_a_sibling_shares_whole_pages_and_copies_the_one_both_write() -> None:
    admission = admission_of(windows=(0, 5))
    leader, sibling = led(admission, 11)
    assert enter(admission, sibling, 3)
    assert (sibling.num_scheduled, sibling.prefill_end) == (10, 10)
    assert sibling.is_prefilled and sibling.num_cached_tokens == 10 and sibling.num_registered == 2
    full, windowed = admission.pages.tables[:, :4]
    assert full[3, :2].tolist() == full[0, :2].tolist() and full[3, 2] not in (0, full[0, 2])
    assert windowed[3, 0] == 0, "position 10 sees 6"
    assert windowed[3, 1] == windowed[0, 1] != 0 and windowed[3, 2] not in (0, windowed[0, 2])
    copy, seat = admission.take_chores()
    assert copy == CopyPlan(
        sources=((full[0, 2],), (windowed[0, 2],)), targets=((full[3, 2],), (windowed[3, 2],))
    )
    assert isinstance(seat, SeatPlan) and seat.slot == 3
    assert seat.recent[-1] == leader.prompt_ids[-1], "goes in anew as a decode step"


def test_a_prompt_that_ends_with_a_page_s_first_token_needs_no_copy() -> None:
    admission = admission_of()
    _, sibling = led(admission, 9)
    assert enter(admission, sibling, 1) and kinds(admission) == [SeatPlan]
    assert admission.pages.tables[0, 1].tolist()[:3] == [*admission.pages.tables[0, 0, :2], 0]


def test_siblings_share_whatever_the_prefix_cache_does() -> None:
    for ask, changes in (({"enable_prefix_caching": False}, {}), ({}, {"use_prefix_cache": False})):
        admission = admission_of(ask)
        _, sibling = led(admission, 10, **changes)
        assert enter(admission, sibling, 1) and sibling.num_scheduled == 9


def test_a_prompt_of_one_token_is_computed_by_each() -> None:
    admission = admission_of()
    _, sibling = led(admission, 1)
    assert enter(admission, sibling, 1) and sibling.num_scheduled == 0 and not kinds(admission)


def test_a_sibling_shares_while_the_window_is_still_there() -> None:
    """Position 9 under a window of 4 sees 6 and on, in page 1."""
    for end, start in ((10, 9), (11, 9), (12, 0)):
        admission = admission_of({"enable_prefix_caching": False}, windows=(0, 4))
        leader, sibling = led(admission, 10, max_new_tokens=8)
        for position in range(10, end):
            assert admission.pages.extend(0, position, position + 1)
        assert enter(admission, sibling, 1) and sibling.num_scheduled == start


@pytest.mark.parametrize("why", ["left", "preempted", "computes", "came back"])
def test_a_sibling_without_its_leader_starts_by_itself(why: str) -> None:
    admission = admission_of({"enable_prefix_caching": False})
    leader, sibling = led(admission, 10)
    if why == "left":
        leave(admission, leader)
    elif why == "preempted":
        admission.preempt(leader, 0)
        leader.slot = None
    elif why == "computes":
        leader.num_scheduled = 8
    else:
        sibling.num_preemptions = 1
    assert enter(admission, sibling, 1)
    assert sibling.num_scheduled == 0 and sibling.prefill_end == 10 and not kinds(admission)


def test_a_sibling_copies_no_page_that_the_same_step_computes() -> None:
    """The leader came back to a prefix that another request computes in the step to come."""
    admission = admission_of({"admission": "optimistic"})
    leader, sibling = led(admission, 10, max_new_tokens=8)
    for token in (5, 6, 7):
        leader.accept_token(token)
    admission.preempt(leader, 0)
    leader.slot = None
    other = traced(5, leader.known_ids(0, 13))
    assert enter(admission, other, 1)
    compute(admission, other, 12)
    assert enter(admission, leader, 2) and leader.num_scheduled == 12
    assert enter(admission, sibling, 3)
    assert CopyPlan not in kinds(admission) and sibling.num_scheduled == 8
    leave(admission, sibling)
    compute(admission, leader, 13)
    assert enter(admission, sibling, 3) and CopyPlan in kinds(admission)


def test_a_sibling_that_does_not_fit_beside_its_leader_changes_nothing() -> None:
    admission = admission_of({"enable_prefix_caching": False}, num_pages=(5,))
    _, sibling = led(admission, 10, max_new_tokens=4)
    before = unpromised(admission)
    assert not enter(admission, sibling, 1)
    assert unpromised(admission) == before and not kinds(admission)
    assert not admission.pages.tables[0, 1].any() and sibling.num_scheduled == 0


# --- preemption -------------------------------------------------------------------------------


def test_swapped_out_and_in_again() -> None:
    admission = admission_of({"admission": "optimistic", "preemption": "swap"}, windows=(0, 5))
    one = traced(7, 10, max_new_tokens=8)
    assert enter(admission, one, 0)
    compute(admission, one, 10)
    one.accept_token(5)
    held = admission.pages.held(0)
    admission.preempt(one, 0)
    one.slot = None
    assert (one.num_scheduled, one.num_preemptions) == (10, 1)
    assert all(pool.num_used == 0 for pool in admission.pages.pools)
    assert enter(admission, one, 2)
    out, back, seat = admission.take_chores()
    assert out == SwapPlan(key=7, is_out=True, pages=tuple(part.pages for part in held))
    now = admission.pages.held(2)
    assert back == SwapPlan(key=7, is_out=False, pages=tuple(part.pages for part in now))
    assert [(p.first, p.end) for p in now] == [(p.first, p.end) for p in held]
    assert isinstance(seat, SeatPlan) and seat.slot == 2 and seat.recent[-1] == 5
    assert one.swapped is None and one.num_scheduled == 10
    assert one.num_registered == 0, "its pages are new: their content is noted anew"


def test_a_swapped_request_waits_until_its_pages_are_there() -> None:
    admission = admission_of({"admission": "optimistic", "preemption": "swap"}, num_pages=(5,))
    one = traced(1, 10, max_new_tokens=6)
    assert enter(admission, one, 0)
    compute(admission, one, 10)
    admission.preempt(one, 0)
    one.slot = None
    assert enter(admission, traced(2, 8, max_new_tokens=1), 1)
    assert not enter(admission, one, 0) and one.swapped is not None
    assert kinds(admission) == [SwapPlan]


def test_recomputed_with_what_it_had_drawn() -> None:
    admission = admission_of({"admission": "optimistic", "enable_prefix_caching": False})
    one = traced(1, 10, max_new_tokens=8, frequency_penalty=1.0)
    assert enter(admission, one, 0)
    compute(admission, one, 10)
    for token in (5, 6, 5):
        one.accept_token(token)
    compute(admission, one, 12)
    admission.preempt(one, 0)
    one.slot = None
    assert one.num_scheduled == one.num_computed == 0
    admission.take_chores()
    assert enter(admission, one, 1)
    assert one.prefill_end == 13 and one.num_scheduled == 0
    (seat,) = admission.take_chores()
    assert isinstance(seat, SeatPlan) and seat.seen[[5, 6]].tolist() == [2, 1]


def test_recomputing_finds_what_the_prefix_cache_kept() -> None:
    """What is reported as cached, and counted, is of the first start only."""
    admission = admission_of({"admission": "optimistic"})
    one = traced(1, 10, max_new_tokens=8)
    assert enter(admission, one, 0)
    compute(admission, one, 10)
    admission.preempt(one, 0)
    one.slot = None
    assert enter(admission, one, 1)
    assert one.num_scheduled == 8 and one.num_registered == 2
    assert one.num_cached_tokens == 0 and (admission.num_queries, admission.num_hits) == (10, 0)


def test_chores_of_one_that_is_gone_are_dropped_and_no_others() -> None:
    admission = admission_of({"admission": "optimistic", "preemption": "swap"})
    requests = [traced(order, 6, presence_penalty=1.0) for order in (1, 2)]
    for slot, one in enumerate(requests):
        assert enter(admission, one, slot)
        compute(admission, one, 6)
        admission.preempt(one, slot)
        one.slot = None
    admission.drop(requests[0])
    left = admission.take_chores()
    assert [type(chore) for chore in left] == [SeatPlan, SeatPlan, SwapPlan]
    assert isinstance(left[2], SwapPlan) and left[2].key == 2
