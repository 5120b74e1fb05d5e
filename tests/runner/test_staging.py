"""The host/device line: plans become batches of the compiled shapes, packed results records."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from jaxinfer.config.engine_config import EngineConfig
from jaxinfer.config.sampling_params import MAX_LOGPROBS
from jaxinfer.config.step_plan import DecodePlan, PrefillPlan, SeatPlan, StepResult
from jaxinfer.runner.batch import abstract_decode_batch, abstract_prefill_batch
from jaxinfer.runner.staging import stage_decode, stage_pages, stage_prefill, stage_seat, unpack
from jaxinfer.sampling.draw import PACKED_COLUMNS
from jaxinfer.sampling.slot_state import abstract_seat_row
from jaxinfer.scheduler.planning import Step
from jaxinfer.scheduler.scheduler import Scheduler
from tests.support.records import geometry, request

VOCAB = 320
GEOMETRY = geometry(windows=(0, 5), num_slots=5, decode_widths=(2, 5), prefill_rows=(1, 4))


def steps() -> Iterator[Step]:
    """Every step of a run in which all shapes come up; nothing is computed."""
    scheduler = Scheduler(GEOMETRY, EngineConfig(enable_prefix_caching=False), VOCAB)
    for order, length in enumerate((3, 40, 9, 30, 4), 1):
        limits: dict[str, Any] = {"min_tokens": 2} if order % 2 else {}
        scheduler.add(request(length, order=order, max_new_tokens=8, **limits))
    while (step := scheduler.schedule()) is not None:
        yield step
        for one in scheduler.update(step, drawn(len(step.rows))):
            if one.is_finished:
                scheduler.finish(one)


def drawn(rows: int) -> StepResult:
    return unpack(np.ones((rows, PACKED_COLUMNS), np.int32))


def described(tree: object) -> object:
    return jax.tree.map(lambda leaf: (leaf.shape, np.dtype(leaf.dtype)), tree)


def test_staged_plans_have_the_shapes_and_dtypes_that_are_compiled() -> None:
    """An executable refuses any other: nothing may depend on what happens to be in a plan."""
    seen = set()
    for step in steps():
        plan = step.plan
        if isinstance(plan, PrefillPlan):
            rows = plan.tokens.shape[0]
            staged, compiled = stage_prefill(plan), abstract_prefill_batch(GEOMETRY, rows)
            seen.add(("prefill", rows))
        else:
            width = plan.positions.shape[0]
            staged, compiled = stage_decode(plan), abstract_decode_batch(GEOMETRY, width)
            seen.add(("decode", width))
        assert described(staged) == described(compiled)
        for chore in step.chores:
            assert isinstance(chore, SeatPlan)
            assert described(stage_seat(chore)) == described(abstract_seat_row(VOCAB))
            seen.add(("seat", chore.slot))
    assert seen >= {("prefill", 1), ("prefill", 4), ("decode", 2), ("decode", 5)}
    assert len([kind for kind, _ in seen if kind == "seat"]) == 3


def test_every_field_lands_in_its_own_place() -> None:
    for step in steps():
        plan = step.plan
        if isinstance(plan, PrefillPlan):
            batch = stage_prefill(plan)
            for name in ("tokens", "starts", "lengths", "tables"):
                assert getattr(batch.rows, name) is getattr(plan, name)
            assert batch.slots is plan.slots
        else:
            batch = stage_decode(plan)
            for name in ("slots", "positions", "tables"):
                assert getattr(batch, name) is getattr(plan, name)
        for name in plan.sampling.__slots__:
            assert getattr(batch.sampling, name) is getattr(plan.sampling, name)


def test_a_seat_keeps_every_field() -> None:
    chores = [chore for step in steps() for chore in step.chores]
    for chore in chores:
        assert isinstance(chore, SeatPlan)
        row = stage_seat(chore)
        assert int(row.slot) == chore.slot
        for name in set(SeatPlan.__slots__) - {"slot"}:
            assert getattr(row, name) is getattr(chore, name)


def test_a_plan_is_not_changed_by_later_steps() -> None:
    """A launched step may still read its plan while the scheduler goes on."""
    taken = []
    for step in steps():
        plan = step.plan
        stage = stage_decode if isinstance(plan, DecodePlan) else stage_prefill
        leaves = jax.tree.leaves((stage(plan), [stage_seat(one) for one in step.chores]))  # type: ignore[arg-type]
        taken.append((leaves, [leaf.copy() for leaf in leaves]))
    for leaves, copies in taken:
        for leaf, copy in zip(leaves, copies, strict=True):
            np.testing.assert_array_equal(leaf, copy)


def test_unpack() -> None:
    packed = np.zeros((2, PACKED_COLUMNS), np.int32)
    packed[:, 0], packed[:, 1] = [7, 8], [1, 0]
    packed[:, 2] = np.array([-0.25, -1.5], np.float32).view(np.int32)
    packed[:, 3] = [1, 300]
    packed[:, 4 : 4 + MAX_LOGPROBS] = np.arange(40).reshape(2, 20)
    packed[:, 4 + MAX_LOGPROBS :] = (-np.arange(40, dtype=np.float32)).view(np.int32).reshape(2, 20)
    found = unpack(packed)
    assert found.tokens.tolist() == [7, 8] and found.finite.tolist() == [True, False]
    assert found.logprobs.tolist() == [-0.25, -1.5] and found.ranks.tolist() == [1, 300]
    assert found.best_ids[1].tolist() == list(range(20, 40))
    assert found.best_logprobs[1].tolist() == [-float(i) for i in range(20, 40)]


@pytest.mark.parametrize(
    ("pages", "parts"),
    [
        (((), ()), []),
        (((5,), ()), [[[5, 0, 0], [0, 0, 0]]]),
        (((5, 6, 7), (8, 9)), [[[5, 6, 7], [8, 9, 0]]]),
        (((5, 6, 7, 8), (9,)), [[[5, 6, 7], [9, 0, 0]], [[8, 0, 0], [0, 0, 0]]]),
    ],
)
def test_pages_travel_three_at_a_time_and_the_null_page_fills_up(
    pages: tuple[tuple[int, ...], ...], parts: list[list[list[int]]]
) -> None:
    found = stage_pages(pages, 3)
    assert [part.tolist() for part in found] == parts
    assert all(part.dtype == np.int32 and part.shape == (2, 3) for part in found)
