"""Chosen rows as arrays: shapes of the programs, padding that writes nowhere."""

import numpy as np

from jaxinfer.scheduler.page_tables import PageTables
from jaxinfer.scheduler.planning import StepRow, decode_plan, prefill_plan
from jaxinfer.scheduler.request import Request
from jaxinfer.scheduler.sampling_rows import SlotSampling
from tests.scheduler.requests import traced
from tests.support.records import geometry

GEOMETRY = geometry(num_slots=5, decode_widths=(2, 5), windows=(0, 4), page_tokens=4)


def seated(slots: dict[int, Request]) -> tuple[PageTables, SlotSampling]:
    pages, sampling = PageTables(GEOMETRY), SlotSampling(GEOMETRY.num_slots)
    for slot, request in slots.items():
        assert pages.open(slot, 24) and pages.extend(slot, 0, 20)
        request.slot = slot
        sampling.set(slot, request)
    return pages, sampling


def row(request: Request, start: int, end: int, *, draws: bool = True) -> StepRow:
    return StepRow(request=request, start=start, end=end, draws=draws)


def test_a_prefill_plan() -> None:
    one, two = traced(1, 11, seed=7), traced(2, 3, seed=2**40 + 5, temperature=0.5)
    two.output_ids = [55, 56]
    pages, sampling = seated({4: one, 1: two})
    rows = [row(one, 0, 8, draws=False), row(one, 8, 11), row(two, 0, 5)]
    plan = prefill_plan(rows, GEOMETRY, pages, sampling)
    assert plan.tokens.tolist() == [
        list(range(100, 108)),
        [108, 109, 110, 0, 0, 0, 0, 0],
        [200, 201, 202, 55, 56, 0, 0, 0],
    ]
    assert plan.starts.tolist() == [0, 8, 0] and plan.lengths.tolist() == [8, 3, 5]
    assert plan.slots.tolist() == [5, 4, 1], "the first draws nothing"
    np.testing.assert_array_equal(plan.tables, pages.tables[:, [4, 4, 1]])
    assert plan.sampling.seeds.tolist() == [[7, 0], [7, 0], [5, 256]]
    assert plan.sampling.temperature.tolist() == [1, 1, 0.5]


def test_a_decode_plan_is_packed_into_the_narrowest_program() -> None:
    requests = {slot: traced(slot + 1, 3, temperature=0.5) for slot in (4, 0, 2)}
    pages, sampling = seated(requests)
    rows = [row(request, 10 + slot, 11 + slot) for slot, request in requests.items()]
    two = decode_plan(rows[:2], GEOMETRY, pages, sampling)
    assert two.slots.tolist() == [4, 0] and two.positions.tolist() == [14, 10]
    three = decode_plan(rows, GEOMETRY, pages, sampling)
    assert three.slots.tolist() == [4, 0, 2, 5, 5]
    assert three.positions.tolist() == [14, 10, 12, 0, 0]
    assert not three.tables[:, 3:].any(), "empty rows have null pages"
    assert three.sampling.temperature.tolist() == [0.5, 0.5, 0.5, 0, 0]
    np.testing.assert_array_equal(three.tables[:, :3], pages.tables[:, [4, 0, 2]])


def test_a_plan_does_not_change_with_what_it_was_made_of() -> None:
    """A launched step may still read its plan while the scheduler goes on."""
    one = traced(1, 3, temperature=0.5)
    pages, sampling = seated({0: one})
    plans = [
        prefill_plan([row(one, 0, 3)], GEOMETRY, pages, sampling),
        decode_plan([row(one, 3, 4)], GEOMETRY, pages, sampling),
    ]
    copies = [plan.tables.copy() for plan in plans]
    pages.release(0)
    sampling.set(0, traced(2, 3, temperature=2.0))
    one.prompt_ids[0] = 999
    for plan, copy in zip(plans, copies, strict=True):
        assert copy.any() and (plan.tables == copy).all()
        assert plan.sampling.temperature[0] == 0.5
    assert plans[0].tokens[0, 0] == 100  # type: ignore[union-attr]


def test_dtypes_are_those_of_the_programs() -> None:
    one = traced(1, 3)
    pages, sampling = seated({0: one})
    prefill = prefill_plan([row(one, 0, 3)], GEOMETRY, pages, sampling)
    decode = decode_plan([row(one, 3, 4)], GEOMETRY, pages, sampling)
    for array in (prefill.tokens, prefill.starts, prefill.lengths, prefill.tables, prefill.slots):
        assert array.dtype == np.int32
    for array in (decode.slots, decode.positions, decode.tables):
        assert array.dtype == np.int32
