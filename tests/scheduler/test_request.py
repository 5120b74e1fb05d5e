"""A request's arithmetic and how its last token is recognized."""

import pytest

from tests.support.records import request


def test_counts() -> None:
    one = request(5, max_new_tokens=3)
    one.prefill_end = 5
    assert one.num_tokens == 5 and one.max_cached_tokens == 7 and one.num_to_draw == 3
    assert not one.is_prefilled and not one.is_finished
    one.num_scheduled, one.num_drawing = 5, 1
    assert one.is_prefilled and one.num_to_draw == 2
    one.num_drawing = 0
    one.accept_token(9)
    assert one.num_tokens == 6 and one.output_ids == [9] and not one.is_finished
    assert one.num_to_draw == 2


def test_known_ids_run_over_prompt_and_output() -> None:
    one = request([1, 2, 3], max_new_tokens=9)
    for token in (4, 5, 6):
        one.accept_token(token)
    assert one.known_ids(0, 6) == [1, 2, 3, 4, 5, 6]
    assert one.known_ids(1, 3) == [2, 3] and one.known_ids(2, 4) == [3, 4]
    assert one.known_ids(3, 5) == [4, 5] and one.known_ids(6, 6) == []


def test_one_token_needs_no_place_of_its_own() -> None:
    """BB-30 (vllm#1655): a prompt of the full length still gives a token, or is only scored."""
    assert request(32, max_new_tokens=1).max_cached_tokens == 32
    assert request(32, max_new_tokens=0).max_cached_tokens == 32


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


def test_an_end_id_among_the_first_min_tokens_ends_nothing() -> None:
    """The device masks it; where nothing else may be drawn, it comes all the same."""
    one = request(max_new_tokens=9, end_ids=(7,), min_tokens=2)
    for _ in range(2):
        one.accept_token(7)
        assert not one.is_finished
    one.accept_token(7)
    assert one.finish_reason == "stop" and one.output_ids == [7, 7, 7]


def test_requests_are_told_apart_by_identity() -> None:
    one, other = request(), request()
    assert one != other and len({one, other}) == 2
