"""When tokens are drafted: by how many run, and by what became of a request's drafts."""

from collections.abc import Sequence
from typing import Any

import pytest

from jaxinfer.config.speculative_config import DEFAULT_RUNNING, SpeculativeConfig
from jaxinfer.speculation.control import (
    FIRST_TRIES,
    PROBE_EVERY,
    ModelDrafter,
    NgramDrafter,
)
from tests.support.records import request


def drafter(max_rows: int = 8, **options: Any) -> NgramDrafter:
    return NgramDrafter(SpeculativeConfig(**options), max_rows)


@pytest.mark.parametrize(("running", "tokens"), [(1, 5), (2, 5), (3, 2), (6, 2), (7, 0), (99, 0)])
def test_tokens_by_running_requests(running: int, tokens: int) -> None:
    assert drafter(tokens_by_running=((2, 5), (6, 2))).num_tokens(running) == tokens


def test_without_a_table_few_running_requests_draft() -> None:
    assert drafter().num_tokens(DEFAULT_RUNNING) == 5
    assert drafter().num_tokens(DEFAULT_RUNNING + 1) == 0


def test_an_empty_table_drafts_nothing() -> None:
    made = drafter(tokens_by_running=())
    assert made.num_tokens(1) == 0 and not model_drafter(tokens_by_running=()).can_pay


def test_no_more_rows_draft_than_a_program_has() -> None:
    assert drafter(max_rows=2, tokens_by_running=((6, 3),)).num_tokens(3) == 0


def feed(made: NgramDrafter, one: Any, accepted: Sequence[int]) -> None:
    for count in accepted:
        made.see(one, 5, count)


def test_a_request_whose_drafts_fail_stops_and_then_only_tries() -> None:
    made, one = drafter(), request([1, 2, 1, 2])
    assert made.is_due(one) and made.drafts(one, 2) == (1, 2)
    feed(made, one, [0] * 4)
    assert not made.is_due(one) and made.drafts(one, 2) == ()
    one.num_undrafted = PROBE_EVERY
    assert made.is_due(one) and made.drafts(one, 2) == (1, 2)
    feed(made, one, [5] * 4)
    one.num_undrafted = 0
    assert made.is_due(one)


def test_a_request_with_nothing_to_look_up_is_rarely_due() -> None:
    """While one is due the device waits for the host."""
    made, one = drafter(), request([1, 2, 3, 4])
    rhythm = []
    for _ in range(3 * PROBE_EVERY):
        rhythm.append(made.is_due(one))
        assert made.drafts(one, 2) == ()
        one.num_undrafted += 1  # as the choice of rows counts
    assert 2 <= sum(rhythm) <= 5 and not any(rhythm[4 : PROBE_EVERY - 1])


def test_without_adapting_it_always_drafts() -> None:
    made, one = drafter(adaptive=False), request([1, 2, 1, 2])
    feed(made, one, [0] * 20)
    assert made.is_due(one)


def test_counts_of_a_request_and_of_all() -> None:
    made, first, second = drafter(), request([1]), request([2])
    made.see(first, 5, 3)
    made.see(second, 2, 0)
    assert first.draft_counts.num_accepted_tokens == 3
    assert made.counts.numbers(3) == {
        "spec_decode_num_drafts": 2,
        "spec_decode_num_draft_tokens": 7,
        "spec_decode_num_accepted_tokens": 3,
        "spec_decode_acceptance_rate": 3 / 7,
        "spec_decode_mean_acceptance_length": 2.5,
        'spec_decode_num_accepted_tokens_per_pos{position="0"}': 1,
        'spec_decode_num_accepted_tokens_per_pos{position="1"}': 1,
        'spec_decode_num_accepted_tokens_per_pos{position="2"}': 1,
    }


def model_drafter(cost: float = 0.1, max_position: int = 99, **options: Any) -> ModelDrafter:
    config = SpeculativeConfig(method="self", num_layers=1, **options)
    return ModelDrafter(config, 8, max_position=max_position, cost=cost)


def test_a_model_drafts_what_it_has_positions_for() -> None:
    """BB-43, vllm#24662: the last draft goes in at num_scheduled + most - 1."""
    made, one = model_drafter(max_position=32), request([1, 2, 3])
    assert [len(made.drafts(one, most)) for most in (1, 5)] == [1, 5]
    for scheduled, count in ((27, 5), (28, 4), (31, 1), (32, 0), (40, 0)):
        one.num_scheduled = scheduled
        assert made.drafts(one, 5) == (0,) * count


def test_a_model_s_drafts_are_learned_from_as_others_are() -> None:
    made, one = model_drafter(), request([1])
    for _ in range(FIRST_TRIES):
        assert made.is_due(one)
        made.see(one, 5, 0)
    assert not made.is_due(one) and made.drafts(one, 2) == ()
    one.num_undrafted = PROBE_EVERY
    assert made.drafts(one, 2) == (0, 0)


def test_dearer_drafts_have_to_stand_more_often() -> None:
    """Five at a tenth of a step each, or at half of one: two accepted pay for the first only."""
    (cheap, one), (dear, other) = [(model_drafter(cost), request([1])) for cost in (0.1, 0.5)]
    for _ in range(20):
        cheap.see(one, 5, 2)
        dear.see(other, 5, 2)
    assert cheap.is_due(one) and not dear.is_due(other)
    for _ in range(20):
        dear.see(other, 5, 4)
    assert dear.is_due(other)


def test_few_drafts_need_not_pay_for_more() -> None:
    """Two of at most eight are drafted, both stand: 2 - 0.6 is a gain."""
    made, one = (
        model_drafter(0.3, num_speculative_tokens=8, tokens_by_running=((4, 2),)),
        request([1]),
    )
    for _ in range(30):
        made.see(one, 2, 2)
    assert made.can_pay and made.is_due(one)
    assert not model_drafter(0.7, tokens_by_running=((4, 2),)).can_pay


def test_what_costs_as_much_as_the_model_never_drafts_unless_told_to() -> None:
    assert not model_drafter(1.0).is_due(request([1])) and not model_drafter(1.0).can_pay
    assert model_drafter(1.0, adaptive=False).drafts(request([1]), 3) == (0, 0, 0)


@pytest.mark.parametrize("adaptive", [True, False])
def test_past_the_draft_model_s_positions_nobody_is_due(adaptive: bool) -> None:
    """So steps without drafts are launched ahead, as where nothing drafts."""
    config = SpeculativeConfig(method="draft_model", model="m", adaptive=adaptive)
    made, one = ModelDrafter(config, 8, max_position=32, cost=0.1), request([1, 2])
    one.num_scheduled = 31
    assert made.is_due(one) and made.drafts(one, 3) == (0,)
    one.num_scheduled = 32
    assert not made.is_due(one) and made.drafts(one, 3) == ()
