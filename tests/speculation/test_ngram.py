"""Lookup against a plain search, on token lists that repeat themselves."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.speculation.ngram import ngram_drafts


def plain_drafts(ids: Sequence[int], longest: int, shortest: int, most: int) -> tuple[int, ...]:
    """Every place tried, from the end."""
    for size in range(min(longest, len(ids) - 1), shortest - 1, -1):
        for start in range(len(ids) - size - 1, -1, -1):
            if list(ids[start : start + size]) == list(ids[-size:]):
                copy = list(ids)
                for place in range(most):
                    copy.append(copy[start + size + place])
                return tuple(copy[len(ids) :])
    return ()


@settings(deadline=None, derandomize=True, database=None)
@given(
    # Ids whose bytes look like parts of others: a match must begin at an id.
    ids=st.lists(st.sampled_from([0, 1, 256, 65536, 1 << 24, 0x01010101]), max_size=30),
    longest=st.integers(1, 5),
    shortest=st.integers(1, 5),
    most=st.integers(1, 12),
)
def test_lookup_is_the_plain_search(ids: list[int], longest: int, shortest: int, most: int) -> None:
    found = ngram_drafts(ids, longest=longest, shortest=shortest, most=most)
    assert found == plain_drafts(ids, longest, shortest, most)


def test_the_longest_gram_wins_over_a_later_shorter_one() -> None:
    ids = [1, 2, 3, 9, 7, 3, 5, 1, 2, 3]
    assert ngram_drafts(ids, longest=3, shortest=1, most=1) == (9,)
    assert ngram_drafts(ids, longest=1, shortest=1, most=1) == (5,)


def test_a_copy_goes_on_in_what_it_drafted() -> None:
    assert ngram_drafts([4, 5, 4, 5], longest=2, shortest=2, most=5) == (4, 5, 4, 5, 4)


def test_windows_larger_than_what_exists_find_nothing() -> None:
    """BB-46, vllm#16883."""
    assert ngram_drafts([7], longest=50, shortest=1, most=300) == ()
    assert ngram_drafts([], longest=50, shortest=1, most=300) == ()
    assert ngram_drafts([1, 2, 3], longest=50, shortest=1, most=300) == ()
