"""Seconds of drafting and verifying, and what they are compared with."""

import pytest

from jaxinfer.engine.draft_times import DraftTimes


def test_a_gain_is_against_decode_steps_of_the_same_width() -> None:
    times = DraftTimes()
    times.see_round(2, draft_s=1.0, verify_s=1.0, tokens_a_row=9.0)  # nothing to compare with yet
    for seconds in (1.0, 1.0, 3.0):
        times.see_decode(2, seconds)
    times.see_round(2, draft_s=1.0, verify_s=1.0, tokens_a_row=9.0)  # nor with so few
    times.see_decode(2, 3.0)
    times.see_decode(8, 100.0)
    times.see_round(2, draft_s=0.5, verify_s=2.5, tokens_a_row=3.0)
    times.see_round(2, draft_s=0.5, verify_s=0.5, tokens_a_row=1.0)
    numbers = times.numbers()
    assert numbers["spec_decode_num_rounds"] == 4
    assert numbers["spec_decode_draft_seconds"] == 3.0
    assert numbers["spec_decode_verify_seconds"] == 5.0
    # Four tokens a row at 2 s each in place of two rounds of 4 s together.
    assert numbers["spec_decode_estimated_gain"] == pytest.approx(2.0)


def test_without_a_decode_step_nothing_is_known() -> None:
    times = DraftTimes()
    times.see_round(2, draft_s=1.0, verify_s=1.0, tokens_a_row=9.0)
    assert times.numbers()["spec_decode_estimated_gain"] == 0.0
