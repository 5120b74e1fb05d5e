"""Single rules of the scheduler; `test_traces.py` tries them all together."""

import numpy as np
import pytest

from jaxinfer.config.step_plan import DecodePlan, PrefillPlan, StepResult
from jaxinfer.scheduler.request import Request
from jaxinfer.scheduler.scheduler import Scheduler
from tests.scheduler.fake_device import FakeDevice, prompt_of
from tests.support.records import geometry, request


def result(tokens: list[int], *, finite: bool = True, vocab: int = 20) -> StepResult:
    rows = len(tokens)
    ids, values = np.zeros((rows, 20), np.int32), np.full((rows, 20), -np.inf, np.float32)
    ids[:, :vocab], values[:, :vocab] = np.arange(vocab)[::-1], -np.arange(vocab)
    return StepResult(
        tokens=np.array(tokens, np.int32),
        finite=np.full(rows, finite),
        logprobs=np.full(rows, -1.5, np.float32),
        best_ids=ids,
        best_logprobs=values,
    )


def prefill(scheduler: Scheduler) -> PrefillPlan:
    plan = scheduler.schedule()
    assert isinstance(plan, PrefillPlan)
    return plan


def decode(scheduler: Scheduler) -> DecodePlan:
    plan = scheduler.schedule()
    assert isinstance(plan, DecodePlan)
    return plan


def traced(order: int, length: int, **changes) -> Request:
    return request(prompt_of(order, length), order=order, **changes)


def test_nothing_to_do() -> None:
    scheduler = Scheduler(geometry())
    assert scheduler.schedule() is None and not scheduler.has_work


def test_a_prompt_s_chunks_are_rows_of_one_step() -> None:
    scheduler = Scheduler(geometry(chunk_tokens=8, prefill_rows=(1, 4)))
    scheduler.add(traced(1, 30))
    plan = prefill(scheduler)
    assert plan.starts.tolist() == [0, 8, 16, 24] and plan.lengths.tolist() == [8, 8, 8, 6]
    assert plan.slots.tolist() == [4, 4, 4, 0]
    assert plan.tokens[3].tolist() == [*range(1024, 1030), 0, 0]
    assert scheduler.update_prefill(result([0, 0, 0, 9]))[0].output_ids == [9]


def test_a_step_never_has_rows_that_no_program_has() -> None:
    scheduler = Scheduler(geometry(chunk_tokens=8, prefill_rows=(1, 4)))
    scheduler.add(traced(1, 20))
    for start in (0, 8, 16):
        plan = prefill(scheduler)
        assert plan.tokens.shape == (1, 8) and plan.starts.tolist() == [start]
        scheduler.update_prefill(result([9]))
    assert decode(scheduler).positions[0] == 20


def test_rows_are_filled_oldest_request_first() -> None:
    scheduler = Scheduler(geometry(chunk_tokens=8, prefill_rows=(1, 4)))
    for order in (1, 2, 3):
        scheduler.add(traced(order, 12))
    plan = prefill(scheduler)
    assert (plan.tokens[:, 0] // 1000).tolist() == [1, 1, 2, 2]
    assert [drawn.order for drawn in scheduler.update_prefill(result([0, 9, 0, 9]))] == [1, 2]


def test_prefill_and_decode_alternate() -> None:
    scheduler = Scheduler(geometry(chunk_tokens=8, prefill_rows=(1,), max_model_len=64))
    device = FakeDevice(scheduler.geometry)
    scheduler.add(traced(1, 3, max_new_tokens=20))
    scheduler.add(traced(2, 40))
    kinds = []
    for _ in range(9):
        step = device.step(scheduler)
        assert step is not None
        kinds.append("p" if isinstance(step[0], PrefillPlan) else "d")
    assert "".join(kinds) == "pdpdpdpdp"


def test_few_requests_take_a_narrow_program_whatever_their_slots() -> None:
    scheduler = Scheduler(geometry(num_slots=8, decode_widths=(2, 8)))
    device = FakeDevice(scheduler.geometry)
    for order in (1, 2, 3, 4):
        scheduler.add(traced(order, 4, max_new_tokens=2 if order < 3 else 9))
    plans = []
    while (step := device.step(scheduler)) is not None:
        if isinstance(step[0], DecodePlan):
            plans.append(step[0].slots.tolist())
    assert plans[0] == [0, 1, 2, 3, 8, 8, 8, 8]
    assert plans[-1] == [2, 3]


def test_a_freed_slot_is_filled_before_the_next_step() -> None:
    scheduler = Scheduler(geometry(num_slots=2, prefill_rows=(1,)))
    device = FakeDevice(scheduler.geometry)
    for order in (1, 2, 3):
        scheduler.add(traced(order, 4, max_new_tokens=1))
    device.step(scheduler)
    assert scheduler.slots[0] is None and len(scheduler.waiting) == 1
    prefill(scheduler)
    held = scheduler.slots[0]
    assert held is not None and held.order == 3


def test_the_first_in_line_is_not_overtaken() -> None:
    scheduler = Scheduler(geometry(page_tokens=8, max_model_len=64, num_pages=(9,)))
    device = FakeDevice(scheduler.geometry)
    scheduler.add(traced(1, 33, max_new_tokens=1))  # five of eight pages
    scheduler.add(traced(2, 60, max_new_tokens=1))  # all of them: must wait
    scheduler.add(traced(3, 4, max_new_tokens=1))  # would fit beside the first
    device.step(scheduler)
    assert [one.order for one in scheduler.running] == [1]
    order = [1]
    while (step := device.step(scheduler)) is not None:
        order += [one.order for one in step[1] if one.order not in order]
    assert order == [1, 2, 3]


def test_what_can_never_fit_is_said_with_numbers() -> None:
    """CASES: a request that can never fit the pool ends with the pages needed and present."""
    scheduler = Scheduler(geometry(page_tokens=8, windows=(0, 4), num_pages=(5, 9)))
    assert scheduler.why_never(32) is None
    reason = scheduler.why_never(33)
    assert reason is not None and "needs 5 pages" in reason and "the pool has 4" in reason
    assert "num_gpu_blocks_override" in reason


def test_nan_ends_one_row_and_no_other() -> None:
    """Promise 11: the row ends with "error" that names NaN, the others go on."""
    scheduler = Scheduler(geometry(num_slots=2, prefill_rows=(1, 2)))
    for order in (1, 2):
        scheduler.add(traced(order, 4))
    prefill(scheduler)
    drawn = result([7, 8])
    drawn.finite[0] = False
    first, second = scheduler.update_prefill(drawn)
    assert first.finish_reason == "error" and first.output_ids == []
    assert first.error is not None and "NaN" in first.error and "4 tokens" in first.error
    assert second.output_ids == [8] and second.finish_reason is None


def test_logprobs_are_taken_only_where_asked() -> None:
    scheduler = Scheduler(geometry(prefill_rows=(1, 2)))
    scheduler.add(traced(1, 4, logprobs=2))
    scheduler.add(traced(2, 4))
    prefill(scheduler)
    asked, silent = scheduler.update_prefill(result([3, 4]))
    (entry,) = asked.logprobs
    assert entry.token_id == 3 and entry.logprob == -1.5 and entry.best == ((19, 0.0), (18, -1.0))
    assert silent.logprobs == []


def test_logprobs_of_a_vocabulary_smaller_than_the_row() -> None:
    """The missing places hold id 0 at -inf: they must not hide token 0's own entry."""
    scheduler = Scheduler(geometry(prefill_rows=(1,)))
    scheduler.add(traced(1, 4, logprobs=20))
    prefill(scheduler)
    (drawn,) = scheduler.update_prefill(result([3], vocab=4))
    assert drawn.logprobs[0].best == ((3, 0.0), (2, -1.0), (1, -2.0), (0, -3.0))


def test_a_request_aborted_during_its_prefill_draws_nothing() -> None:
    scheduler = Scheduler(geometry(prefill_rows=(1,)))
    one = traced(1, 4)
    scheduler.add(one)
    prefill(scheduler)
    one.finish_reason = "abort"
    scheduler.finish(one)
    assert scheduler.update_prefill(result([9])) == [] and one.output_ids == []
    assert not scheduler.has_work and scheduler.pages.pools[0].num_used == 0


def test_an_empty_row_draws_greedily() -> None:
    """What its last request asked for would make every later step compute it."""
    scheduler = Scheduler(geometry(num_slots=2, prefill_rows=(1,)))
    device = FakeDevice(scheduler.geometry)
    scheduler.add(traced(1, 4, max_new_tokens=1, top_k=3, logprobs=2))
    scheduler.add(traced(2, 4, max_new_tokens=3, temperature=0.0))
    device.step(scheduler)
    device.step(scheduler)
    plan = decode(scheduler)
    assert plan.slots.tolist() == [1, 2]
    assert not plan.sampling.temperature.any() and not plan.sampling.top_k.any()
    assert (plan.sampling.num_logprobs == -1).all()


@pytest.mark.parametrize("is_waiting", [True, False])
def test_finishing_twice_is_harmless(is_waiting: bool) -> None:
    scheduler = Scheduler(geometry())
    one = traced(1, 4)
    scheduler.add(one)
    if not is_waiting:
        prefill(scheduler)
    scheduler.finish(one)
    scheduler.finish(one)
    pool = scheduler.pages.pools[0]
    assert not scheduler.has_work and pool.num_unpromised == pool.num_usable
