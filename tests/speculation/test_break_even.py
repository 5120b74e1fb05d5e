"""When drafts pay: by hand, and against a simulation of rounds."""

from random import Random

import pytest

from jaxinfer.speculation.break_even import break_even_acceptance, expected_tokens


@pytest.mark.parametrize(
    ("acceptance", "drafts", "tokens"), [(0, 5, 1), (1, 5, 6), (0.5, 2, 1.75), (0.8, 0, 1)]
)
def test_tokens_of_a_round_by_hand(acceptance: float, drafts: int, tokens: float) -> None:
    assert expected_tokens(acceptance, drafts) == pytest.approx(tokens)


def test_tokens_of_a_round_counted() -> None:
    random, count = Random(1), 20_000
    total = 0
    for _ in range(count):
        stands = [random.random() < 0.7 for _ in range(4)]
        total += 1 + (stands.index(False) if False in stands else 4)
    assert total / count == pytest.approx(expected_tokens(0.7, 4), rel=0.02)


def test_break_even_is_where_both_cost_the_same() -> None:
    found = break_even_acceptance(decode_cost=10, draft_cost=2, verify_cost=11, num_drafts=3)
    assert found is not None
    assert expected_tokens(found, 3) == pytest.approx((3 * 2 + 11) / 10, abs=1e-4)


def test_what_never_pays_and_what_always_does() -> None:
    costs = {"decode_cost": 10.0, "num_drafts": 3}
    assert break_even_acceptance(draft_cost=10, verify_cost=11, **costs) is None
    assert break_even_acceptance(draft_cost=0, verify_cost=10, **costs) == 0.0
