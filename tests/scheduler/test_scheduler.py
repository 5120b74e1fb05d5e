"""Single rules of the scheduler; `test_traces.py` tries them all together."""

import pytest

from jaxinfer.config.step_plan import DecodePlan, Plan, PrefillPlan, SwapPlan
from jaxinfer.errors import RequestError
from tests.scheduler.fake_device import Drawing
from tests.scheduler.fake_loop import FakeLoop, kinds, orders
from tests.scheduler.requests import family, loop_of, traced


def plan_of(loop: FakeLoop) -> Plan:
    """The plan of the next step, which is run and read."""
    step = loop.advance()
    assert step is not None
    return step.plan


def test_nothing_to_do() -> None:
    scheduler = loop_of().scheduler
    assert scheduler.schedule() is None and not scheduler.has_work
    assert scheduler.num_waiting == 0 and scheduler.running == []


# --- prefill and decode -----------------------------------------------------------------------


def test_a_prompt_s_chunks_are_rows_of_one_step() -> None:
    loop = loop_of(chunk_tokens=8, prefill_rows=(1, 4))
    one = traced(1, 30)
    loop.add(one)
    plan = plan_of(loop)
    assert isinstance(plan, PrefillPlan)
    assert plan.starts.tolist() == [0, 8, 16, 24] and plan.lengths.tolist() == [8, 8, 8, 6]
    assert plan.slots.tolist() == [4, 4, 4, 0]
    assert len(one.output_ids) == 1


def test_a_step_never_has_rows_that_no_program_has() -> None:
    loop = loop_of(chunk_tokens=8, prefill_rows=(1, 4))
    loop.add(traced(1, 20))
    for start in (0, 8, 16):
        plan = plan_of(loop)
        assert isinstance(plan, PrefillPlan)
        assert plan.tokens.shape == (1, 8) and plan.starts.tolist() == [start]
    plan = plan_of(loop)
    assert isinstance(plan, DecodePlan) and plan.positions[0] == 20


def test_rows_are_filled_oldest_request_first() -> None:
    loop = loop_of(chunk_tokens=8, prefill_rows=(1, 4))
    for order in (3, 1, 2):
        loop.add(traced(order, 12))
    step = loop.advance()
    assert step is not None and [row.request.order for row in step.rows] == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        ({}, "pdpdpdpdpd"),
        ({"max_prefill_steps": 2}, "pdppdppddd"),
        ({"max_prefill_steps": 9}, "pdppppdddd"),
        ({"enable_chunked_prefill": False}, "pdppppdddd"),
    ],
)
def test_decode_goes_on_between_the_steps_of_a_prompt(ask: dict, expected: str) -> None:
    loop = loop_of(ask, chunk_tokens=8, prefill_rows=(1,))
    loop.add(traced(1, 3, max_new_tokens=30))
    loop.advance()
    loop.advance()
    loop.add(traced(2, 30, max_new_tokens=30))
    while len(loop.steps) < 10:
        loop.advance()
    assert kinds(loop) == expected


def test_without_chunked_prefill_decode_comes_between_prompts() -> None:
    loop = loop_of({"enable_chunked_prefill": False}, chunk_tokens=8, prefill_rows=(1,))
    for order in (1, 2, 3):
        loop.add(traced(order, 15, max_new_tokens=30))
    while len(loop.steps) < 9:
        loop.advance()
    assert kinds(loop) == "ppdppdppd"


def test_few_requests_take_a_narrow_program_whatever_their_slots() -> None:
    loop = loop_of(num_slots=8, decode_widths=(2, 8))
    for order in (1, 2, 3, 4):
        loop.add(traced(order, 4, max_new_tokens=2 if order < 3 else 9))
    loop.run_out()
    plans = [step.plan for step in loop.steps if isinstance(step.plan, DecodePlan)]
    assert plans[0].slots.tolist() == [0, 1, 2, 3, 8, 8, 8, 8]
    assert plans[-1].slots.tolist() == [2, 3]


def test_decode_rows_are_longest_first() -> None:
    """Attention on a CPU takes neighbours together, as far as the longest of them goes."""
    loop = loop_of(chunk_tokens=8, prefill_rows=(1, 3))
    for order, length in enumerate((5, 8, 3)):
        loop.add(traced(order, length))
    while not isinstance(plan := plan_of(loop), DecodePlan):
        pass
    assert plan.positions[:3].tolist() == [8, 5, 3] and plan.slots[:3].tolist() == [1, 0, 2]


def test_a_freed_slot_is_filled_before_the_next_step() -> None:
    loop = loop_of(num_slots=2, prefill_rows=(1,))
    for order in (1, 2, 3):
        loop.add(traced(order, 4, max_new_tokens=1))
    assert [orders(loop.advance()) for _ in range(3)] == [[1], [2], [3]]
    assert loop.steps[2].rows[0].request is not loop.steps[0].rows[0].request


def test_the_first_in_line_is_not_overtaken_for_its_size() -> None:
    loop = loop_of(page_tokens=8, max_model_len=64, num_pages=(9,))
    requests = [
        traced(1, 33, max_new_tokens=1),  # five of eight pages
        traced(2, 60, max_new_tokens=1),  # all of them: must wait
        traced(3, 4, max_new_tokens=1),  # would fit beside the first
    ]
    loop.add(*requests)
    loop.run_out()
    assert list(dict.fromkeys(order for step in loop.steps for order in orders(step))) == [1, 2, 3]


def test_what_can_never_fit_is_said_with_numbers() -> None:
    """CONTRACT: such a request ends with the pages needed and present."""
    scheduler = loop_of(page_tokens=8, windows=(0, 4), num_pages=(5, 9)).scheduler
    assert scheduler.why_never(32) is None
    reason = scheduler.why_never(33)
    assert reason is not None and "needs 5 pages" in reason and "the pool has 4" in reason
    assert "num_gpu_blocks_override" in reason


def test_an_empty_row_draws_greedily() -> None:
    """What its last request asked for would make every later step compute it."""
    loop = loop_of(num_slots=2, prefill_rows=(1,))
    loop.add(traced(1, 4, max_new_tokens=1, top_k=3, logprobs=2))
    loop.add(traced(2, 4, max_new_tokens=3, temperature=0.0))
    plan = [plan_of(loop) for _ in range(3)][-1]
    assert isinstance(plan, DecodePlan) and plan.slots.tolist() == [0, 2]
    assert not plan.sampling.temperature.any() and not plan.sampling.top_k.any()
    assert (plan.sampling.num_logprobs == -1).all()


def test_a_request_that_is_only_scored_ends_with_its_prompt() -> None:
    """BB-30 (vllm#16732): also one that fills every position."""
    loop = loop_of(prefill_rows=(1,), max_model_len=16)
    one = traced(1, 16, max_new_tokens=0, num_prompt_logprobs=1)
    loop.add(one)
    loop.advance()
    assert not one.is_finished
    loop.advance()
    assert one.finish_reason == "length" and one.output_ids == []
    loop.check_drained()


# --- siblings ---------------------------------------------------------------------------------


def test_siblings_wait_for_the_prompt_and_share_it() -> None:
    loop = loop_of(prefill_rows=(1,), num_slots=3)
    requests = family(1, 12, 3, max_new_tokens=4)
    loop.add(requests[0])
    assert loop.scheduler.num_waiting == 3
    loop.advance()
    assert loop.scheduler.num_waiting == 2 and len(loop.scheduler.waiting) == 0
    loop.advance()
    assert len(loop.scheduler.waiting) == 2
    assert orders(loop.advance()) == [1], "decode goes first"
    assert orders(loop.advance()) == [1, 2, 3], "from now on side by side"
    loop.run_out()
    assert [one.num_cached_tokens for one in requests] == [0, 11, 11]
    assert all(len(one.output_ids) == 4 for one in requests)
    assert len({tuple(one.output_ids) for one in requests}) == 3
    loop.check_drained()


def test_siblings_of_an_aborted_leader_start_by_themselves() -> None:
    loop = loop_of(prefill_rows=(1,))
    requests = family(1, 12, 3, max_new_tokens=2)
    loop.add(requests[0])
    loop.end(requests[0])
    assert loop.scheduler.num_waiting == 2
    loop.run_out()
    assert [len(one.output_ids) for one in requests] == [0, 2, 2]
    loop.check_drained()


def test_a_sibling_aborted_before_it_was_queued() -> None:
    loop = loop_of(prefill_rows=(1,))
    requests = family(1, 12, 3, max_new_tokens=2, timeout_s=5.0)
    loop.add(requests[0])
    loop.end(requests[1])
    assert loop.scheduler.num_waiting == 2 and requests[0].siblings == [requests[2]]
    loop.run_out()
    assert [len(one.output_ids) for one in requests] == [2, 0, 2]
    loop.check_drained()


# --- bounds -----------------------------------------------------------------------------------


def test_who_is_overdue() -> None:
    loop = loop_of(num_slots=1)
    requests = [
        traced(1, 4, max_new_tokens=20, timeout_s=5.0, arrival_s=10.0),
        traced(2, 4, timeout_s=3.0, arrival_s=11.0),
        traced(3, 4),
        *family(4, 4, 2, timeout_s=4.0, arrival_s=10.0),
    ]
    for one in requests[:4]:
        loop.add(one)
    loop.advance()
    assert loop.scheduler.overdue(14.0) == []
    assert loop.scheduler.overdue(14.5) == [requests[1], requests[3], requests[4]]
    assert loop.scheduler.overdue(99.0) == [requests[0], requests[1], requests[3], requests[4]]
    loop.end(requests[0])
    loop.end(requests[4])
    assert loop.scheduler.overdue(99.0) == [requests[1], requests[3]]
    loop.run_out()
    assert loop.scheduler.overdue(99.0) == []


def test_a_full_queue_refuses_one_more() -> None:
    loop = loop_of({"max_num_waiting": 2}, num_slots=2)
    for order in (1, 2, 3, 4):  # two of them take the slots that are free
        loop.add(traced(order, 4, max_new_tokens=3))
    with pytest.raises(RequestError, match=r"3 requests would wait.*max_num_waiting allows 2"):
        loop.add(traced(5, 4))
    loop.advance()
    with pytest.raises(RequestError, match="max_num_waiting"):
        loop.add(traced(6, 4))
    loop.end(next(iter(loop.scheduler.waiting)))
    loop.add(traced(7, 4))
    with pytest.raises(RequestError, match="max_num_waiting"):
        loop.add(family(8, 4, 2)[0])
    loop.run_out()
    loop.check_drained()


def test_counts_are_of_what_happened_since() -> None:
    loop = loop_of()
    text = list(range(300, 320))
    for order in (1, 2):
        loop.add(traced(order, text, max_new_tokens=1))
        loop.run_out()
    counts = loop.scheduler.take_counts()
    assert (counts.preemptions, counts.prefix_queries, counts.prefix_hits) == (0, 40, 16)
    counts = loop.scheduler.take_counts()
    assert (counts.preemptions, counts.prefix_queries, counts.prefix_hits) == (0, 0, 0)


def test_the_next_turn_finds_pages_of_the_output() -> None:
    loop = loop_of()
    one = traced(1, 10, max_new_tokens=8)
    loop.add(one)
    loop.run_out()
    turn = traced(2, one.prompt_ids + one.output_ids + [7, 7], max_new_tokens=1)
    loop.add(turn)
    loop.run_out()
    # 18 tokens, of which the last was never put in: two pages of 8.
    assert turn.num_cached_tokens == 16


def test_a_forgotten_prefix_is_computed() -> None:
    """Also by whoever comes while a request that began with it still runs."""
    loop = loop_of()
    requests = [traced(order, list(range(300, 320)), max_new_tokens=9) for order in (1, 2, 3, 4)]
    cached = []
    for place, one in enumerate(requests):
        loop.add(one)
        loop.advance()
        loop.advance()
        cached.append(one.num_cached_tokens)
        if place == 1:
            loop.scheduler.reset_prefix_cache()
    loop.run_out()
    assert cached == [0, 16, 0, 16]
    loop.check_drained()


def test_the_time_of_admission_is_the_first() -> None:
    loop = loop_of({"admission": "optimistic"}, num_pages=(4,), num_slots=2, max_model_len=24)
    requests = [traced(order, 7, max_new_tokens=17) for order in (1, 2)]
    loop.add(*requests)
    for now in range(60):
        loop.launch_ahead(float(now))
        loop.read()
    assert sum(one.num_preemptions for one in requests) > 0
    assert [one.admitted_s for one in requests] == [0.0, 0.0]


def test_aborted_while_the_host_has_its_pages() -> None:
    ask = {"admission": "optimistic", "preemption": "swap"}
    loop = loop_of(ask, num_pages=(4,), num_slots=2, max_model_len=24)
    requests = [traced(order, 7, max_new_tokens=17) for order in (1, 2)]
    loop.add(*requests)
    while not any(one.swapped for one in requests):
        loop.advance()
    assert any(isinstance(chore, SwapPlan) for chore in loop.steps[-1].chores)
    loop.end(next(one for one in requests if one.swapped))
    loop.run_out()
    loop.check_drained()


def test_what_is_drawn_depends_on_seed_and_sample_only() -> None:
    """The fake device must tell them apart, else the traces would show little."""
    drawing = Drawing()
    tokens = {drawing.token(5, seed, index)[0] for seed in range(9) for index in range(9)}
    assert len(tokens) > 9
