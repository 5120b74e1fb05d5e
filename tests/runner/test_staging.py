"""The host/device line: plans become batches of the compiled shapes, packed results records."""

import jax
import numpy as np
import pytest

from jaxinfer.config.sampling_params import MAX_LOGPROBS
from jaxinfer.config.step_plan import DecodePlan, PrefillPlan
from jaxinfer.runner.batch import abstract_decode_batch, abstract_prefill_batch
from jaxinfer.runner.staging import stage_decode, stage_prefill, unpack
from jaxinfer.scheduler.scheduler import Scheduler
from tests.scheduler.fake_device import FakeDevice, prompt_of
from tests.support.records import geometry, request

GEOMETRY = geometry(windows=(0, 5), num_slots=5, decode_widths=(2, 5), prefill_rows=(1, 4))


@pytest.fixture(scope="module")
def plans() -> list[PrefillPlan | DecodePlan]:
    """Every plan of a run in which all shapes come up."""
    scheduler = Scheduler(GEOMETRY)
    device = FakeDevice(GEOMETRY)
    for order, length in enumerate((3, 40, 9, 30, 4), 1):
        scheduler.add(request(prompt_of(order, length), order=order, max_new_tokens=8))
    plans = []
    while (step := device.step(scheduler)) is not None:
        plans.append(step[0])
    return plans


def described(tree: object) -> object:
    return jax.tree.map(lambda leaf: (leaf.shape, np.dtype(leaf.dtype)), tree)


def test_staged_plans_have_the_shapes_and_dtypes_that_are_compiled(
    plans: list[PrefillPlan | DecodePlan],
) -> None:
    """An executable refuses any other: nothing may depend on what happens to be in a plan."""
    seen = set()
    for plan in plans:
        if isinstance(plan, PrefillPlan):
            rows = plan.tokens.shape[0]
            staged, compiled = stage_prefill(plan), abstract_prefill_batch(GEOMETRY, rows)
            seen.add(("prefill", rows))
        else:
            width = plan.positions.shape[0]
            staged, compiled = stage_decode(plan), abstract_decode_batch(GEOMETRY, width)
            seen.add(("decode", width))
        assert described(staged) == described(compiled)
    assert seen == {("prefill", 1), ("prefill", 4), ("decode", 2), ("decode", 5)}


def test_every_field_lands_in_its_own_place(plans: list[PrefillPlan | DecodePlan]) -> None:
    for plan in plans:
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


def test_a_plan_is_not_changed_by_later_steps() -> None:
    """A launched step may still read its plan while the scheduler goes on."""
    scheduler, device = Scheduler(GEOMETRY), FakeDevice(GEOMETRY)
    for order in (1, 2):
        scheduler.add(request(prompt_of(order, 12), order=order, max_new_tokens=6))
    taken = []
    while (step := device.step(scheduler)) is not None:
        leaves = jax.tree.leaves(
            stage_prefill(step[0]) if isinstance(step[0], PrefillPlan) else stage_decode(step[0])
        )
        taken.append((leaves, [leaf.copy() for leaf in leaves]))
    for leaves, copies in taken:
        for leaf, copy in zip(leaves, copies, strict=True):
            np.testing.assert_array_equal(leaf, copy)


def test_unpack() -> None:
    packed = np.zeros((2, 3 + 2 * MAX_LOGPROBS), np.int32)
    packed[:, 0], packed[:, 1] = [7, 8], [1, 0]
    packed[:, 2] = np.array([-0.25, -1.5], np.float32).view(np.int32)
    packed[:, 3:23] = np.arange(40).reshape(2, 20)
    packed[:, 23:] = (-np.arange(40, dtype=np.float32)).view(np.int32).reshape(2, 20)
    found = unpack(packed)
    assert found.tokens.tolist() == [7, 8] and found.finite.tolist() == [True, False]
    assert found.logprobs.tolist() == [-0.25, -1.5]
    assert found.best_ids[1].tolist() == list(range(20, 40))
    assert found.best_logprobs[1].tolist() == [-float(i) for i in range(20, 40)]
