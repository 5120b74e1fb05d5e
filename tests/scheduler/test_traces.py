"""Random traces: no page is lost or shared, nobody waits for ever, order is arrival's."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.config.geometry import Geometry, pages_needed
from jaxinfer.config.step_plan import PrefillPlan
from jaxinfer.scheduler.request import Request
from jaxinfer.scheduler.scheduler import Scheduler
from tests.scheduler.fake_device import EOS, FakeDevice, prompt_of
from tests.support.records import geometry, request


@dataclass(frozen=True)
class Arrival:
    """A request of a trace: when it comes, how EOS would end it, when it is aborted."""

    step: int
    prompt: int
    max_new: int
    eos_after: int | None
    abort_step: int | None


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    windows = draw(st.sampled_from([(0,), (0, 3), (5,), (0, 1, 9), (0, 16)]))
    page, chunk = draw(st.sampled_from([2, 4, 8])), draw(st.sampled_from([2, 4, 8]))
    rows, slots = draw(st.sampled_from([(1,), (1, 2), (1, 4)])), draw(st.integers(1, 5))
    length = draw(st.integers(6, 40))
    needs = [pages_needed(length, page, window, chunk * rows[-1]) for window in windows]
    return geometry(
        max_model_len=length,
        page_tokens=page,
        chunk_tokens=chunk,
        prefill_rows=rows,
        num_slots=slots,
        windows=windows,
        num_pages=tuple(need + 1 + draw(st.integers(0, need * (slots - 1))) for need in needs),
        decode_widths=tuple(w for w in (2,) if w < slots) + (slots,),
    )


@st.composite
def arrivals(draw: st.DrawFn, length: int) -> Arrival:
    prompt = draw(st.integers(1, length))
    return Arrival(
        step=draw(st.integers(0, 12)),
        prompt=prompt,
        max_new=draw(st.integers(1, length - prompt + 1)),
        eos_after=draw(st.none() | st.integers(1, 6)),
        abort_step=draw(st.none() | st.integers(0, 30)),
    )


@st.composite
def traces(draw: st.DrawFn) -> tuple[Geometry, list[Arrival]]:
    made = draw(geometries())
    return made, draw(st.lists(arrivals(made.max_model_len), max_size=8))


def run(made: Geometry, trace: list[Arrival]) -> tuple[list[Request], FakeDevice]:
    """Plays a trace to its end, checking after every step."""
    scheduler = Scheduler(made)
    device = FakeDevice(made, {i: a.eos_after for i, a in enumerate(trace, 1) if a.eos_after})
    requests = [
        request(
            prompt_of(order, one.prompt),
            order=order,
            max_new_tokens=one.max_new,
            end_ids=(EOS,),
            seed=order,
            temperature=order / 10,
        )
        for order, one in enumerate(trace, 1)
    ]
    waited: dict[int, int] = {}
    # Every step advances somebody by a token or a chunk, so that this many are always enough.
    most = 13 + sum(one.prompt + one.max_new for one in trace)
    for step in range(most + 1):
        for arrival, one in zip(trace, requests, strict=True):
            if arrival.step == step and not one.is_finished:
                assert scheduler.why_never(one.max_cached_tokens) is None
                scheduler.add(one)
            if arrival.abort_step == step and not one.is_finished:
                one.finish_reason = "abort"
                scheduler.finish(one)
        _step(scheduler, device, waited)
        _check_pages(scheduler)
    assert not scheduler.has_work, "somebody starves"
    return requests, device


def _step(scheduler: Scheduler, device: FakeDevice, waited: dict[int, int]) -> None:
    done = device.step(scheduler)
    if done is None:
        assert not scheduler.has_work
        return
    plan, drew = done
    held = [one.order for one in scheduler.running]
    assert max(held, default=0) < min((one.order for one in scheduler.waiting), default=1 << 30)
    # Who can decode does so at least every other step.
    for one in scheduler.running:
        waited[one.order] = 0 if one in drew else waited.get(one.order, 0) + one.is_prefilled
        assert waited[one.order] <= 1
    if isinstance(plan, PrefillPlan):
        assert plan.tokens.shape[0] * plan.tokens.shape[1] <= scheduler.geometry.max_prefill_tokens


def _check_pages(scheduler: Scheduler) -> None:
    """Used pages are those of the tables, each in one place; promises never exceed the pool."""
    for pool, table in zip(scheduler.pages.pools, scheduler.pages.tables, strict=True):
        held = table[table > 0]
        assert len(np.unique(held)) == len(held) == pool.num_used
        assert 0 <= pool.num_unpromised <= pool.num_usable - pool.num_used
    for slot, one in enumerate(scheduler.slots):
        assert one is not None or not scheduler.pages.tables[:, slot].any()


def _check_end(trace: list[Arrival], requests: list[Request], device: FakeDevice) -> None:
    for arrival, one in zip(trace, requests, strict=True):
        chunks, decoded = device.chunks.get(one.order, []), device.decoded.get(one.order, [])
        size = device.geometry.chunk_tokens
        assert [start for start, _ in chunks] == list(range(0, size * len(chunks), size))
        assert all(length == size for _, length in chunks[:-1])
        assert decoded == list(range(arrival.prompt, arrival.prompt + len(decoded)))
        if one.finish_reason == "abort":
            continue
        expected = min(arrival.max_new, arrival.eos_after or arrival.max_new)
        assert len(one.output_ids) == expected == len(decoded) + 1
        assert sum(length for _, length in chunks) == arrival.prompt
        is_stopped = arrival.eos_after is not None and arrival.eos_after <= arrival.max_new
        assert one.finish_reason == ("stop" if is_stopped else "length")


def check_trace(made: Geometry, trace: list[Arrival]) -> None:
    trace = sorted(trace, key=lambda one: one.step)  # order is that of arrival
    requests, device = run(made, trace)
    _check_end(trace, requests, device)


@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(traces())
def test_random_traces(trace: tuple[Geometry, list[Arrival]]) -> None:
    check_trace(*trace)


@pytest.mark.slow
@settings(max_examples=10_000, deadline=None, database=None)
@given(traces())
def test_many_random_traces(trace: tuple[Geometry, list[Arrival]]) -> None:
    check_trace(*trace)
