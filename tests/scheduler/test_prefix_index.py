"""What of a prompt is found in pages: whole pages, at multiples of T and S, as far as is needed."""

import pytest

from jaxinfer.config.geometry import Geometry
from jaxinfer.scheduler.page_pool import PagePool
from jaxinfer.scheduler.prefix_index import (
    CachedPrefix,
    SharedPages,
    cached_prefix,
    extend_digests,
    first_column,
)
from tests.support.records import geometry


def digests_of(tokens: list[int], size: int = 4) -> list[bytes]:
    made: list[bytes] = []
    extend_digests(made, tokens, size)
    return made


def test_a_digest_names_a_page_and_all_before_it() -> None:
    one, other = digests_of([1, 2, 3, 4, 5, 6, 7, 8]), digests_of([9, 2, 3, 4, 5, 6, 7, 8])
    assert len(one) == 2 and one[0] != other[0] and one[1] != other[1]
    assert digests_of([1, 2, 3, 4, 5, 6, 7, 9])[0] == one[0]
    assert digests_of([5, 6, 7, 8])[0] != one[1]


def test_only_full_pages_have_one() -> None:
    assert len(digests_of(list(range(7)))) == 1 and digests_of([1, 2, 3]) == []


def test_digests_are_extended_in_any_pieces() -> None:
    tokens, pieces = list(range(100, 123)), []
    for end in (3, 4, 11, 12, 12, 23):
        extend_digests(pieces, tokens[:end], 4)
    assert pieces == digests_of(tokens)


def test_large_token_ids_are_told_apart() -> None:
    ids = [0, 1, 255, 256, 65535, 65536, 262143, 2**31 - 1]
    assert len({digests_of([one] * 4)[0] for one in ids}) == len(ids)


@pytest.mark.parametrize(
    ("window", "position", "column"),
    [(0, 99, 0), (1, 8, 2), (4, 3, 0), (4, 7, 1), (4, 6, 0), (5, 8, 1), (9, 8, 0), (9, 12, 1)],
)
def test_the_first_page_that_a_token_reads(window: int, position: int, column: int) -> None:
    """Position 7 with a window of 4 reads 4 to 7: page 1 of 4 tokens."""
    assert first_column(window, position, 4) == column


class Cache:
    """Pools that hold the pages of one text, and what is left of them."""

    def __init__(self, made: Geometry, tokens: list[int]) -> None:
        self.geometry = made
        self.digests = digests_of(tokens, made.page_tokens)
        self.pools = [PagePool(count) for count in made.num_pages]
        self.pages: list[list[int]] = []
        for pool in self.pools:
            assert pool.reserve(len(self.digests))
            self.pages.append([pool.take() for _ in self.digests])

    def note(self, group: int, *columns: int) -> None:
        for column in columns:
            self.pools[group].register(self.pages[group][column], self.digests[column])

    def find(self, max_tokens: int) -> CachedPrefix | None:
        return cached_prefix(self.pools, self.geometry, self.digests, max_tokens)


def cache(columns: int, **shape) -> Cache:
    made = geometry(**{"page_tokens": 4, "chunk_tokens": 4, **shape})
    return Cache(made, list(range(columns * made.page_tokens)))


def test_nothing_is_found_where_nothing_was_noted() -> None:
    assert cache(4).find(99) is None


def test_the_longest_prefix_is_found() -> None:
    one = cache(4)
    one.note(0, 0, 1, 3)  # page 2 is missing: what lies behind it is of no use
    found = one.find(99)
    part = SharedPages(pages=tuple(one.pages[0][:2]))
    assert found == CachedPrefix(num_tokens=8, groups=(part,)) and part.end == 2


@pytest.mark.parametrize(("most", "found"), [(16, 16), (15, 12), (4, 4), (3, 0), (0, 0)])
def test_no_more_than_asked_for(most: int, found: int) -> None:
    """BB-31 (vllm#7845): a full hit must leave the last token to be computed."""
    one = cache(4)
    one.note(0, 0, 1, 2, 3)
    prefix = one.find(most)
    assert (prefix.num_tokens if prefix else 0) == found


@pytest.mark.parametrize(
    ("page", "chunk", "columns", "found"), [(4, 8, 3, 8), (4, 8, 1, 0), (8, 2, 3, 24), (2, 8, 7, 8)]
)
def test_multiples_of_both_the_chunk_and_the_page(
    page: int, chunk: int, columns: int, found: int
) -> None:
    """Chunks keep their places whether a prefix is found or not."""
    one = cache(8, page_tokens=page, chunk_tokens=chunk)
    one.note(0, *range(columns))
    prefix = one.find(99)
    assert (prefix.num_tokens if prefix else 0) == found


def test_a_window_needs_only_what_the_next_token_sees() -> None:
    one = cache(6, windows=(6,))
    one.note(0, 2, 3)  # tokens 8 to 15; token 16 sees 11 to 16
    assert one.find(99) == CachedPrefix(
        num_tokens=16, groups=(SharedPages(first=2, pages=tuple(one.pages[0][2:4])),)
    )
    assert one.find(15) is None, "token 12 sees 7"


def test_every_group_must_have_its_part() -> None:
    one = cache(6, windows=(0, 6))
    one.note(0, 0, 1, 2, 3, 4)
    one.note(1, 1, 2)
    found = one.find(99)
    assert found is not None and found.num_tokens == 12
    assert [(part.first, len(part.pages)) for part in found.groups] == [(0, 3), (1, 2)]


def test_a_window_of_one_token_needs_no_page() -> None:
    one = cache(4, windows=(0, 1))
    one.note(0, 0, 1, 2)
    found = one.find(99)
    assert found is not None and found.groups[1] == SharedPages(first=3)
