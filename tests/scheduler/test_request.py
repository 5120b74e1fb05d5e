"""A request's arithmetic and how its last token is recognized."""

import pytest

from tests.support.records import request


def test_counts() -> None:
    one = request(5, max_new_tokens=3)
    assert one.num_tokens == 5 and one.max_cached_tokens == 7
    assert not one.is_prefilled and not one.is_finished
    one.num_computed = 5
    assert one.is_prefilled
    one.accept_token(9)
    assert one.num_tokens == 6 and one.output_ids == [9] and not one.is_finished


def test_one_token_needs_no_place_of_its_own() -> None:
    """BB-30 (vllm#1655): a prompt of the full length still gives a token."""
    assert request(32, max_new_tokens=1).max_cached_tokens == 32


def test_the_last_token_ends_it_by_length() -> None:
    one = request(max_new_tokens=2)
    one.accept_token(9)
    assert one.finish_reason is None
    one.accept_token(9)
    assert one.finish_reason == "length" and one.stop_reason is None


@pytest.mark.parametrize(("token", "reason"), [(7, None), (8, 8)])
def test_an_end_id_wins_over_the_length(token: int, reason: int | None) -> None:
    one = request(max_new_tokens=1, end_ids=(7,), stop_ids=(8,))
    one.accept_token(token)
    assert one.finish_reason == "stop" and one.stop_reason == reason
    assert one.output_ids == [token]


def test_requests_are_told_apart_by_identity() -> None:
    one, other = request(), request()
    assert one != other and len({one, other}) == 2
