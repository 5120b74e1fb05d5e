"""Steps that verify drafts: several tokens at once, in order, and only where that is harmless."""

from dataclasses import replace
from typing import Any

import pytest

from jaxinfer.config.engine_config import EngineConfig
from jaxinfer.config.step_plan import VerifyPlan
from jaxinfer.scheduler.scheduler import Scheduler
from tests.scheduler.drafters import DeviceDrafter, FixedDrafter
from tests.scheduler.fake_device import VOCAB, FakeDevice
from tests.scheduler.fake_loop import FakeLoop, kinds
from tests.scheduler.requests import traced
from tests.support.records import geometry


def drafting(
    ask: dict[str, Any] | None = None,
    *,
    wrong: tuple[int, ...] = (),
    depth: int = 1,
    widths: tuple[int, ...] = (4,),
    **shape: Any,
) -> FakeLoop:
    """A loop whose requests draft four tokens, of which those at the places `wrong` are wrong."""
    made = replace(geometry(**shape), draft_tokens=4, verify_widths=widths)
    device = FakeDevice(made)
    drafter = FixedDrafter(device, wrong=wrong)
    scheduler = Scheduler(made, EngineConfig(**(ask or {})), VOCAB, drafter)
    return FakeLoop(scheduler, device, depth=depth)


def counts_of(loop: FakeLoop) -> tuple[int, int, int]:
    drafter = loop.scheduler._drafter
    assert drafter is not None
    counts = drafter.counts
    return counts.num_drafts, counts.num_draft_tokens, counts.num_accepted_tokens


@pytest.mark.parametrize(
    ("wrong", "steps", "counts"),
    [((), "pvv", (2, 8, 8)), ((0,), "p" + "v" * 9 + "d", (9, 30, 0)), ((2,), "pvvvd", (3, 11, 6))],
)
def test_drafts_stand_up_to_the_first_that_is_wrong(
    wrong: tuple[int, ...], steps: str, counts: tuple[int, int, int]
) -> None:
    """Eleven tokens: one by prefill; a step gives those that stand and one more."""
    loop = drafting(wrong=wrong)
    one = traced(1, 4, max_new_tokens=11)
    loop.add(one)
    loop.run_out()
    assert one.output_ids == loop.device.alone(one).output_ids
    assert kinds(loop) == steps and counts_of(loop) == counts
    loop.check_drained()


def test_no_more_drafts_than_tokens_that_may_come() -> None:
    """BB-43 (vllm#5342): the last token is drawn, not drafted; nothing lies past the pages."""
    loop = drafting(max_model_len=8, page_tokens=4)
    one = traced(1, 5, max_new_tokens=4)
    loop.add(one)
    loop.run_out()
    assert kinds(loop) == "pv" and counts_of(loop) == (1, 2, 2)
    assert len(one.output_ids) == 4


def test_tokens_after_the_end_are_dropped_within_a_step() -> None:
    """BB-42 (transformers#47912): the text ends with EOS, and what came after counts nowhere."""
    loop = drafting()
    tokens = loop.device.alone(traced(1, 4, max_new_tokens=20)).tokens[4:]
    assert tokens[2] not in tokens[:2]
    one = traced(1, 4, max_new_tokens=20, end_ids=(tokens[2],))
    loop.add(one)
    loop.run_out()
    assert one.output_ids == tokens[:3] and one.finish_reason == "stop"
    assert kinds(loop) == "pv" and counts_of(loop) == (1, 4, 2)
    loop.check_drained()


def test_whoever_takes_a_token_may_end_the_text() -> None:
    """A stop string is seen between two tokens of one step."""
    loop = drafting()
    loop.ends_text = lambda one: len(one.output_ids) == 4
    one = traced(1, 4, max_new_tokens=20)
    loop.add(one)
    loop.run_out()
    assert one.output_ids == loop.device.alone(one).tokens[4:8] and one.finish_reason == "stop"
    loop.check_drained()


def test_a_row_without_drafts_decodes_among_the_others() -> None:
    loop = drafting(prefill_rows=(1, 2))
    requests = [traced(1, 4, max_new_tokens=9), traced(2, 4, max_new_tokens=2)]
    loop.add(*requests)
    loop.advance()
    step = loop.advance()
    assert step is not None and isinstance(step.plan, VerifyPlan)
    assert step.plan.num_drafts.tolist() == [4, 0, 0, 0]
    loop.run_out()
    assert [len(one.output_ids) for one in requests] == [9, 2]


def test_nothing_is_launched_beside_a_step_that_verifies() -> None:
    """How far it gets is known only when it was read; and drafts follow the last token."""
    loop = drafting(depth=3)
    loop.add(traced(1, 4, max_new_tokens=20))
    loop.launch_ahead()
    assert kinds(loop) == "p", "the first token is not there yet"
    loop.read()
    loop.launch_ahead()
    assert kinds(loop) == "pv" and loop.scheduler.schedule() is None
    loop.run_out()
    loop.check_drained()


def test_too_many_requests_for_the_verify_programs_decode() -> None:
    loop = drafting(widths=(2,), prefill_rows=(1, 3), num_slots=3)
    loop.add(*(traced(order, 4, max_new_tokens=4 if order < 3 else 12) for order in (1, 2, 3)))
    loop.run_out()
    assert kinds(loop) == "pdddvv"


def test_a_state_in_which_somebody_drafts_is_not_steady() -> None:
    loop = drafting()
    loop.add(traced(1, 4, max_new_tokens=20))
    loop.advance()
    assert not loop.scheduler.is_steady(2)


def test_nobody_is_preempted_for_drafts() -> None:
    """Everybody has the page of the next token before anybody drafts."""
    loop = drafting(
        {"admission": "optimistic"}, page_tokens=4, num_pages=(7,), num_slots=2, wrong=(3,)
    )
    requests = [traced(order, 4, max_new_tokens=9) for order in (1, 2)]
    loop.add(*requests)
    loop.run_out()
    assert [one.num_preemptions for one in requests] == [0, 0]
    assert counts_of(loop)[2] > 0
    loop.check_drained()


@pytest.mark.parametrize("preemption", ["swap", "recompute"])
def test_pages_of_drafts_that_fell_do_not_travel(preemption: str) -> None:
    """Preempted after a step whose drafts reached into a page that holds nothing now."""
    loop = drafting(
        {"admission": "optimistic", "preemption": preemption, "enable_prefix_caching": False},
        wrong=(0,),
        page_tokens=2,
        num_pages=(15,),
        num_slots=2,
        max_model_len=28,
    )
    requests = [traced(order, 4, max_new_tokens=24) for order in (1, 2)]
    loop.add(*requests)
    while not (victims := [one for one in requests if one.slot is None]):
        assert loop.advance() is not None
    for part in victims[0].swapped or ():
        assert part.end == -(-victims[0].num_scheduled // 2)
    loop.run_out()
    assert all(one.output_ids == loop.device.alone(one).output_ids for one in requests)
    loop.check_drained()


def drafting_on_device(*, share: float = 1.0, depth: int = 2, **ask: Any) -> FakeLoop:
    made = replace(geometry(prefill_rows=(1, 3)), draft_tokens=4, verify_widths=(4,))
    device = FakeDevice(made, draft_share=share)
    scheduler = Scheduler(made, EngineConfig(**ask), VOCAB, DeviceDrafter(device))
    return FakeLoop(scheduler, device, depth=depth)


def test_drafts_of_the_device_do_not_wait_for_the_host() -> None:
    """The last token is on the device: a round is planned while the step before it runs."""
    loop = drafting_on_device()
    one = traced(1, 4, max_new_tokens=11)
    loop.add(one)
    loop.launch_ahead()
    assert kinds(loop) == "pv", "nothing is read yet"
    plan = loop.steps[-1].plan
    assert isinstance(plan, VerifyPlan) and plan.num_draft_steps == 4 and not plan.drafts.any()
    assert loop.scheduler.schedule() is None
    loop.read()
    loop.launch_ahead()
    assert kinds(loop) == "pv", "how far the round gets is not known yet"
    loop.run_out()
    assert one.output_ids == loop.device.alone(one).output_ids
    assert kinds(loop) == "pvv" and counts_of(loop) == (2, 8, 8)
    loop.check_drained()


def test_who_drafts_most_says_how_many_steps_draft() -> None:
    loop = drafting_on_device(depth=1)
    requests = [traced(order, 4, max_new_tokens=tokens) for order, tokens in ((1, 4), (2, 3))]
    loop.add(*requests, traced(3, 4, max_new_tokens=9))  # of order 3: it only rides along
    steps = [one.plan for one in loop.run_out() if isinstance(one.plan, VerifyPlan)]
    assert steps[0].num_draft_steps == steps[0].num_drafts.max() == 2
    assert sorted(steps[0].num_drafts.tolist()) == [0, 0, 1, 2]
    loop.check_drained()


def test_an_end_before_a_round_drops_the_round() -> None:
    """The step before it, read after the round was launched, drew the last token."""
    loop = drafting_on_device()
    one = traced(1, 4, max_new_tokens=20, end_ids=(loop.device.alone(traced(1, 4)).tokens[4],))
    loop.add(one)
    loop.run_out()
    assert len(one.output_ids) == 1 and kinds(loop) == "pv" and counts_of(loop) == (0, 0, 0)
    loop.check_drained()
