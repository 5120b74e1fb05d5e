"""Steps under way: planned before any result, ended late, pages free when the last was read."""

import pytest

from tests.scheduler.fake_device import FakeDevice, empty_result
from tests.scheduler.fake_loop import kinds
from tests.scheduler.requests import loop_of, traced

# --- planned ahead ----------------------------------------------------------------------------


def test_steps_are_planned_before_any_result() -> None:
    loop = loop_of(depth=9, prefill_rows=(1, 2))
    one = traced(1, 11, max_new_tokens=4)
    loop.add(one)
    loop.launch_ahead()
    assert kinds(loop) == "pddd" and one.output_ids == []
    assert loop.device.decoded[1] == [11, 12, 13]
    assert one.num_in_flight == 5 and one.num_drawing == 4 and one.num_to_draw == 0
    loop.run_out()
    assert len(one.output_ids) == 4


def test_a_steady_state() -> None:
    loop = loop_of(num_slots=2, prefill_rows=(1,))
    scheduler = loop.scheduler
    assert not scheduler.is_steady(1), "nobody runs"
    scheduler.add(traced(1, 4, max_new_tokens=4))
    assert not scheduler.is_steady(1), "one waits"
    loop.advance()
    assert scheduler.is_steady(3) and not scheduler.is_steady(4), "three tokens are left"
    scheduler.add(traced(2, 20, max_new_tokens=4))
    assert not scheduler.is_steady(1)
    loop.advance()
    loop.advance()
    assert not scheduler.is_steady(1), "a prompt is not done"


def test_a_state_in_which_some_are_left_out_is_not_steady() -> None:
    loop = loop_of({"latency_max_num_seqs": 1}, num_slots=3)
    for order in (1, 2, 3):
        loop.add(traced(order, 4, max_new_tokens=9, latency_sensitive=order == 3))
    while len(loop.steps) < 5:
        loop.advance()
    assert all(one.is_prefilled for one in loop.scheduler.running)
    assert len(loop.scheduler.running) == 3 and not loop.scheduler.is_steady(2)


def test_a_burst_is_read_as_one() -> None:
    loop = loop_of(burst=4)
    one = traced(1, 4, max_new_tokens=9)
    loop.add(one)
    loop.advance()
    loop.launch_ahead()
    assert [len(flight) for flight in loop.flights] == [4]
    loop.read()
    assert len(one.output_ids) == 5


# --- ends -------------------------------------------------------------------------------------


def test_nan_ends_one_row_and_no_other() -> None:
    """Promise 11: the row ends with "error" that names NaN, the others go on."""
    loop = loop_of(num_slots=2, prefill_rows=(1, 2))
    for order in (1, 2):
        loop.add(traced(order, 4))
    step = loop.scheduler.schedule()
    assert step is not None
    drawn = empty_result(2)
    drawn.finite[0] = False
    first, second = loop.scheduler.update(step, drawn)
    assert first.finish_reason == "error" and first.output_ids == []
    assert first.error is not None and "NaN" in first.error and "4 tokens" in first.error
    assert second.output_ids == [0] and second.finish_reason is None


def ended_by(token: int, **changes):
    """A request that ends with `token`, which its device draws first of all."""
    return traced(1, 4, end_ids=(token,), max_new_tokens=20, **changes)


def test_tokens_drawn_after_a_stop_are_dropped() -> None:
    """With overlap the host learns of the end when the next step is launched already."""
    alone = FakeDevice(loop_of().scheduler.geometry).alone(traced(1, 4, max_new_tokens=20))
    end = alone.tokens[4 + 3]
    assert end not in alone.tokens[4 : 4 + 3]
    loop = loop_of(depth=3)
    one = ended_by(end)
    loop.add(one)
    loop.run_out()
    assert one.output_ids == alone.tokens[4:8] and one.finish_reason == "stop"
    while loop.flights:
        assert loop.read() == [], "what comes after the end is nobody's"
    assert len(one.output_ids) == 4 and len(loop.device.decoded[1]) == 3 + 2
    loop.check_drained()


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_pages_and_slot_are_free_once_the_last_step_in_flight_was_read(depth: int) -> None:
    loop = loop_of(depth=depth, num_slots=1, prefill_rows=(1,))
    one, other = traced(1, 4, max_new_tokens=20), traced(2, 4, max_new_tokens=1)
    loop.add(one)
    loop.add(other)
    loop.launch_ahead()
    assert len(loop.flights) == depth
    loop.end(one)
    pool = loop.scheduler.pages.pools[0]
    for left in range(depth, 0, -1):
        assert len(loop.flights) == left and pool.num_used > 0 and one.slot == 0
        assert loop.scheduler.schedule() is None, "no slot is free"
        assert loop.read() == []
    assert pool.num_used == 0 and one.slot is None and one.output_ids == []
    loop.run_out()
    assert len(other.output_ids) == 1


@pytest.mark.parametrize("where", ["waiting", "prefill", "decode", "flight"])
def test_aborted_anywhere(where: str) -> None:
    loop = loop_of(prefill_rows=(1,))
    one = traced(1, 12, max_new_tokens=8)
    loop.add(one)
    for _ in range({"waiting": 0, "prefill": 1, "decode": 3, "flight": 1}[where]):
        loop.advance()
    if where == "flight":
        loop.launch_ahead()
    tokens = list(one.output_ids)
    loop.end(one)
    while loop.flights:
        loop.read()
    assert one.output_ids == tokens
    loop.check_drained()
    loop.finish(one)  # twice is harmless
    loop.check_drained()
