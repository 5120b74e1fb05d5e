"""HOST. How often drafts must stand to pay, from what a step costs.

Costs are times, or bytes read where bandwidth decides. Knows no device and no model.
"""

_PRECISION = 1e-6


def expected_tokens(acceptance: float, num_drafts: int) -> float:
    """Tokens of a round whose drafts each stand with a chance of `acceptance`, up to the first that
    does not; the token that the model adds is one of them.

    Source: Leviathan et al. 2023, equation 1.
    """
    return sum(acceptance**place for place in range(num_drafts + 1))


def break_even_acceptance(
    *, decode_cost: float, draft_cost: float, verify_cost: float, num_drafts: int
) -> float | None:
    """The acceptance from which on a round gives more tokens than decode steps in its time.

    Args:
        decode_cost: of a step without drafts. draft_cost: of drafting one token.
        verify_cost: of the step that verifies `num_drafts` of them.

    Returns:
        in [0, 1]; None where a round costs more even if every draft stands.
    """
    goal = (num_drafts * draft_cost + verify_cost) / decode_cost
    if goal > num_drafts + 1:
        return None
    low, high = 0.0, 1.0
    while high - low > _PRECISION:
        middle = (low + high) / 2
        reaches = expected_tokens(middle, num_drafts) >= goal
        low, high = (low, middle) if reaches else (middle, high)
    return high if goal > 1 else 0.0
