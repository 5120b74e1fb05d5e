"""Who is served when there is too little for all: classes, priorities, preemption; no starving."""

from random import Random
from typing import Any

import pytest

from jaxinfer.config.step_plan import PrefillPlan
from jaxinfer.scheduler import row_choice as scheduling
from jaxinfer.scheduler import waiting_queue
from jaxinfer.scheduler.planning import Step
from jaxinfer.scheduler.request import Request
from tests.scheduler.fake_loop import FakeLoop, kinds, orders
from tests.scheduler.requests import loop_of, traced


def first_steps(steps: list[Step]) -> list[int]:
    """Orders of requests as they come up."""
    return list(dict.fromkeys(order for step in steps for order in orders(step)))


# --- priorities and classes -------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "expected"), [("fcfs", [1, 2, 3]), ("priority", [2, 3, 1])])
def test_priorities_count_where_the_policy_says_so(policy: str, expected: list[int]) -> None:
    loop = loop_of({"scheduling_policy": policy}, num_slots=1)
    for order, priority in ((1, 5), (2, -1), (3, 0)):
        loop.add(traced(order, 4, priority=priority))
    assert first_steps(loop.run_out()) == expected


def test_a_latency_sensitive_request_goes_before_the_chunks_of_a_long_prompt() -> None:
    loop = loop_of(prefill_rows=(1, 2), num_slots=3)
    loop.add(traced(1, 60))
    loop.advance()
    loop.add(traced(2, 4))
    assert orders(loop.advance()) == [1], "others come after those that run"
    loop.add(traced(3, 4, latency_sensitive=True))
    assert orders(loop.advance()) == [3, 1]


def test_without_a_limit_everybody_shares_its_steps() -> None:
    loop = loop_of(prefill_rows=(1, 2, 3))
    for order in (1, 2, 3):
        loop.add(traced(order, 4, latency_sensitive=order == 3))
    assert orders(loop.advance()) == [3, 1, 2]
    assert orders(loop.advance()) == [3, 1, 2]


def test_few_others_share_its_steps_and_take_turns() -> None:
    """From the step in which it is admitted: prefill and decode."""
    loop = loop_of({"latency_max_num_seqs": 1}, prefill_rows=(1, 2, 3), num_slots=4)
    for order in (1, 2, 3):
        loop.add(traced(order, 4, max_new_tokens=20))
    assert orders(loop.advance()) == [1, 2, 3]
    loop.add(traced(4, 4, max_new_tokens=7, latency_sensitive=True))
    assert [orders(loop.advance()) for _ in range(2)] == [[1, 2, 3], [4]]
    beside = [orders(loop.advance()) for _ in range(6)]
    assert [order for step in beside for order in step if order != 4] == [1, 2, 3] * 2
    assert all(4 in step for step in beside)
    assert orders(loop.advance()) == [1, 2, 3], "it has gone"


def test_where_none_may_share_they_wait_until_it_has_gone() -> None:
    loop = loop_of({"latency_max_num_seqs": 0}, prefill_rows=(1, 2), num_slots=4)
    loop.add(traced(1, 40, max_new_tokens=3))
    loop.advance()
    loop.add(traced(2, 4))
    loop.add(traced(3, 20, max_new_tokens=3, latency_sensitive=True))
    steps = loop.run_out()
    alone = [orders(step) for step in steps]
    last = max(place for place, step in enumerate(alone) if 3 in step)
    assert alone[: last + 1] == [[3]] * (last + 1)
    assert set(first_steps(steps[last + 1 :])) == {1, 2}


@pytest.mark.parametrize("depth", [1, 2])
def test_a_prompt_that_may_not_be_shared_does_not_wait_for_decode_steps(depth: int) -> None:
    """The others could decode but may not: without the prompt nobody would go on."""
    loop = loop_of({"latency_max_num_seqs": 0}, prefill_rows=(1,), num_slots=2, depth=depth)
    loop.add(traced(1, 4, max_new_tokens=20))
    loop.advance()
    loop.add(traced(2, 24, max_new_tokens=2, latency_sensitive=True))
    while len(loop.steps) < 6:
        loop.launch_ahead()
        assert len(loop.flights) == depth, "steps are launched ahead all the same"
        loop.read()
    assert kinds(loop)[:6] == "pdpppd"
    assert [orders(step) for step in loop.steps[2:6]] == [[2]] * 4


# --- preemption -------------------------------------------------------------------------------


def pressed(ask: dict[str, Any] | None = None, **shape: Any) -> FakeLoop:
    """Few pages of four tokens, admission by what is known."""
    return loop_of(
        {"admission": "optimistic", "enable_prefix_caching": False, **(ask or {})},
        **{"page_tokens": 4, "chunk_tokens": 4, "num_slots": 3, "num_pages": (9,), **shape},
    )


def first_preempted(loop: FakeLoop, requests: list[Request]) -> Request:
    while not any(one.num_preemptions for one in requests):
        assert loop.advance() is not None
    return next(one for one in requests if one.num_preemptions)


def test_who_generated_least_gives_way() -> None:
    loop = pressed(prefill_rows=(1,))
    requests = [traced(1, 15, max_new_tokens=16), traced(2, 4, max_new_tokens=28)]
    loop.add(requests[1])
    for _ in range(4):
        loop.advance()
    loop.add(requests[0])
    victim = first_preempted(loop, requests)
    assert victim is requests[0], "it arrived first, and has the fewest tokens"
    assert 0 < len(victim.output_ids) < len(requests[1].output_ids)
    loop.run_out()
    loop.check_drained()


@pytest.mark.parametrize("ask", [{"scheduling_policy": "priority"}, {}])
def test_class_and_priority_come_before_that(ask: dict[str, Any]) -> None:
    loop = pressed(ask)
    options = {"priority": -1} if ask else {"latency_sensitive": True}
    requests = [traced(1, 4, max_new_tokens=28), traced(2, 12, max_new_tokens=20, **options)]
    loop.add(requests[0])
    for _ in range(4):
        loop.advance()
    loop.add(requests[1])
    assert first_preempted(loop, requests) is requests[0]
    loop.run_out()
    loop.check_drained()


def test_the_last_to_arrive_among_equals() -> None:
    loop = pressed()
    requests = [traced(order, 4, max_new_tokens=28) for order in (1, 2, 3)]
    loop.add(*requests)
    assert first_preempted(loop, requests) is requests[2]


@pytest.mark.parametrize("preemption", ["swap", "recompute"])
def test_nobody_is_preempted_while_a_step_is_in_flight(preemption: str) -> None:
    """What is in flight may end somebody; and its pages must not be given away."""
    loop = pressed({"preemption": preemption})
    loop.depth = 3
    requests = [traced(order, 4, max_new_tokens=25) for order in (1, 2, 3)]
    loop.add(*requests)
    while loop.scheduler.has_work:
        counts = [one.num_preemptions for one in requests]
        was_in_flight = bool(loop.flights)
        loop.launch_ahead()
        assert not was_in_flight or [one.num_preemptions for one in requests] == counts
        loop.read()
    assert sum(one.num_preemptions for one in requests) > 0
    loop.check_drained()


def test_aborted_before_its_pages_have_gone_to_the_host() -> None:
    """It gave way in a step that was not launched then: what was to be done first is dropped."""
    loop = pressed(
        {"preemption": "swap"},
        **{"page_tokens": 2, "prefill_rows": (1,), "num_slots": 2, "num_pages": (16,)},
    )
    one = traced(1, 4, max_new_tokens=20)
    loop.add(one)
    loop.advance()
    loop.add(traced(2, 20, max_new_tokens=2, latency_sensitive=True))
    while one.slot is not None:
        step = loop.advance()
    assert step is None and one.swapped is not None and len(loop.scheduler.admission.chores) == 1
    loop.end(one)
    assert loop.scheduler.admission.chores == []
    loop.run_out()
    loop.check_drained()


def test_pages_for_the_next_tokens_of_those_that_run_stay_free() -> None:
    """Else whoever is admitted would be preempted at once."""
    loop = pressed(num_pages=(5,), num_slots=2)
    requests = [traced(1, 7, max_new_tokens=9), traced(2, 7, max_new_tokens=9)]
    loop.add(*requests)
    loop.advance()
    assert [one.slot for one in requests] == [0, None], "two pages are left, and one is spare"
    loop.run_out()
    assert sum(one.num_preemptions for one in requests) == 0


@pytest.mark.parametrize(("new", "is_at_once"), [(5, True), (6, False), (8, False)])
def test_a_page_stays_free_for_whoever_s_next_token_begins_one(new: int, is_at_once: bool) -> None:
    """Four of six pages are full; the fifth, if it comes to that, is begun in the next step."""
    loop = pressed(num_pages=(7,), num_slots=2)
    requests = [traced(1, 12, max_new_tokens=new), traced(2, 4, max_new_tokens=4)]
    loop.add(requests[0])
    while requests[0].num_scheduled < 16:
        loop.advance()
    loop.add(requests[1])
    loop.advance()
    assert (requests[1].slot is not None) == is_at_once
    loop.run_out()
    assert [one.num_preemptions for one in requests] == [0, 0]


def test_reserved_pages_are_never_taken_away() -> None:
    loop = pressed({"admission": "reserve"}, max_model_len=32)
    requests = [traced(order, 4, max_new_tokens=25) for order in (1, 2, 3)]
    loop.add(*requests)
    loop.run_out()
    assert loop.scheduler.take_counts().preemptions == 0


# --- nobody starves ---------------------------------------------------------------------------


class Stream:
    """Requests of the first priority that never end, and one of the last among them."""

    def __init__(self, loop: FakeLoop, target: Request, *, latency_sensitive: bool = False) -> None:
        self.loop = loop
        self.target = target
        self._random = Random(3)
        self._options = {"latency_sensitive": latency_sensitive}
        self._order = 10
        self._is_added = False
        self._alive: list[Request] = []

    def served_before_it(self) -> int:
        """How many came to their end before the target did."""
        ended = 0
        while not self.target.is_finished:
            ended += sum(one.is_finished for one in self._alive)
            self._alive = [one for one in self._alive if not one.is_finished]
            while len(self._alive) < self.loop.scheduler.geometry.num_slots + 2:
                self._arrive()
            if self._order >= self.target.order and not self._is_added:
                self.loop.add(self.target)
                self._is_added = True
            assert ended < 1000, "it starves"
            self.loop.launch_ahead()
            self.loop.read()
        return ended

    def _arrive(self) -> None:
        self._order += 1 + (self._order + 1 == self.target.order)
        tokens = [self._random.randint(1, 99) for _ in range(self._random.randint(1, 4))]
        new = self._random.randint(10, 30)
        one = traced(self._order, tokens, max_new_tokens=new, **self._options)
        self._alive.append(one)
        self.loop.add(one)


@pytest.fixture
def few_overtakes(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(waiting_queue, "MAX_OVERTAKES", 8)
    return 8


TARGETS = {"long prompt": (30, 10), "long output": (4, 40)}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("preemption", ["swap", "recompute"])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_the_last_in_priority_comes_to_its_end_under_pressure(
    policy: str, preemption: str, target: str, few_overtakes: int
) -> None:
    """Each time it is preempted it waits once more, and it is not preempted often."""
    prompt, new = TARGETS[target]
    loop = pressed(
        {"scheduling_policy": policy, "preemption": preemption},
        **{"page_tokens": 1, "prefill_rows": (1,), "num_slots": 4, "num_pages": (65,)},
    )
    loop.depth = 2
    last = traced(29, list(range(500, 500 + prompt)), max_new_tokens=new, priority=9)
    served = Stream(loop, last).served_before_it()
    assert last.num_preemptions <= scheduling.MAX_PREEMPTIONS
    assert served <= 30 + (1 + last.num_preemptions) * (few_overtakes + 2 * 4)


def test_whoever_was_preempted_often_is_spared(few_overtakes: int) -> None:
    """The same stream without that rule preempts it more often."""
    most = []
    for limit in (scheduling.MAX_PREEMPTIONS, 10**9):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scheduling, "MAX_PREEMPTIONS", limit)
            loop = pressed(
                {"scheduling_policy": "priority"},
                **{"page_tokens": 1, "prefill_rows": (1,), "num_slots": 8, "num_pages": (65,)},
            )
            last = traced(29, [500] * 10, max_new_tokens=50, priority=9)
            Stream(loop, last).served_before_it()
            most.append(last.num_preemptions)
    assert most[0] <= scheduling.MAX_PREEMPTIONS < most[1]


def test_latency_sensitive_requests_do_not_keep_others_out_for_ever(few_overtakes: int) -> None:
    loop = loop_of({"latency_max_num_seqs": 1}, num_slots=3)
    last = traced(29, [500] * 20, max_new_tokens=10)
    assert Stream(loop, last, latency_sensitive=True).served_before_it() <= 60


def test_where_none_may_share_one_left_out_for_long_does(
    few_overtakes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a slot, and urgent requests keep coming."""
    monkeypatch.setattr(scheduling, "MAX_TURNS_LEFT_OUT", 4)
    loop = loop_of({"latency_max_num_seqs": 0}, num_slots=3)
    last = traced(29, [500] * 20, max_new_tokens=10)
    assert Stream(loop, last, latency_sensitive=True).served_before_it() <= 100


def test_running_prompts_are_not_starved_by_new_ones(few_overtakes: int) -> None:
    """Whoever has a slot gets chunks before anybody new is admitted."""
    loop = loop_of({"scheduling_policy": "priority"}, num_slots=3, prefill_rows=(1, 2))
    long = traced(1, 60, priority=9, max_new_tokens=1)
    loop.add(long)
    loop.advance()
    for order in range(2, 9):
        loop.add(traced(order, 16, max_new_tokens=1))
    steps = 0
    while not long.is_finished:
        step, steps = loop.advance(), steps + 1
        assert step is None or not isinstance(step.plan, PrefillPlan) or 1 in orders(step)
    assert steps <= 8
