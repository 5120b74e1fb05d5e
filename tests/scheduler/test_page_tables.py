"""Tables and pools in step: windows free old pages, slots open all or nothing, pages are shared."""

import numpy as np

from jaxinfer.scheduler.page_tables import PageTables
from jaxinfer.scheduler.prefix_index import SharedPages, extend_digests
from tests.support.records import geometry


def tables_of(**shape) -> PageTables:
    return PageTables(
        geometry(**{"page_tokens": 4, "chunk_tokens": 4, "prefill_rows": (1,), **shape})
    )


def columns_with_pages(tables: PageTables, group: int, slot: int) -> list[int]:
    return np.flatnonzero(tables.tables[group, slot]).tolist()


def unpromised(tables: PageTables) -> list[int]:
    return [pool.num_unpromised for pool in tables.pools]


def test_pages_come_as_positions_do() -> None:
    tables = tables_of(page_tokens=8)
    assert tables.open(1, 20)
    for start, end, columns in ((0, 8, [0]), (8, 9, [0, 1]), (9, 16, [0, 1])):
        assert tables.extend(1, start, end)
        assert columns_with_pages(tables, 0, 1) == columns
    assert tables.pools[0].num_used == 2
    assert columns_with_pages(tables, 0, 0) == []


def test_a_window_frees_what_no_later_step_reads() -> None:
    tables = tables_of(windows=(0, 5))
    assert tables.open(0, 40)
    for start in range(0, 40, 4):
        assert tables.extend(0, start, start + 4)
        oldest = max(0, start - 4) // 4  # position `start` sees itself and four before it
        assert columns_with_pages(tables, 1, 0) == list(range(oldest, start // 4 + 1))
        assert columns_with_pages(tables, 0, 0) == list(range(start // 4 + 1))
    assert tables.pools[0].num_used == 10 and tables.pools[1].num_used == 2


def test_the_first_chunk_of_a_step_still_has_its_window() -> None:
    """Several chunks in one step: what lies behind the window of the last is read by the first."""
    tables = tables_of(prefill_rows=(1, 4), windows=(4,))
    assert tables.open(0, 48)
    assert tables.extend(0, 0, 16)
    # The scheduler extends chunk after chunk, always from the first position of the step.
    for end in (20, 24, 28, 32):
        assert tables.extend(0, 16, end)
    # Position 16 sees 13, 14 and 15, so column 3 stays, and so do all the step writes.
    assert columns_with_pages(tables, 0, 0) == [3, 4, 5, 6, 7]


def test_a_decode_step_at_a_page_s_edge() -> None:
    tables = tables_of(windows=(4,))
    assert tables.open(0, 20)
    tables.extend(0, 0, 4)
    tables.extend(0, 4, 8)
    expected = {8: [1, 2], 9: [1, 2], 10: [1, 2], 11: [2], 12: [2, 3]}
    for position, columns in expected.items():
        assert tables.extend(0, position, position + 1)
        assert columns_with_pages(tables, 0, 0) == columns


def test_open_is_all_or_nothing_over_groups() -> None:
    tables = tables_of(windows=(0, 4), num_pages=(11, 3 + 1))
    assert tables.needs(16) == [4, 3]
    assert tables.open(0, 16)
    # The first group has room for another, the second has not: nothing may stay promised.
    assert not tables.open(1, 16)
    assert unpromised(tables) == [6, 0]
    tables.release(0)
    assert unpromised(tables) == [10, 3]
    assert tables.open(1, 16)


def test_spare_pages_stay_unpromised() -> None:
    tables = tables_of(num_pages=(7,))
    assert not tables.open(0, 16, spare=3) and unpromised(tables) == [6]
    assert tables.open(0, 16, spare=2) and unpromised(tables) == [2]


def test_more_than_was_promised_is_taken_from_what_is_free() -> None:
    """Optimistic admission promises what is known; later tokens take what there is."""
    tables = tables_of(num_pages=(4,))
    assert tables.open(0, 4) and tables.open(1, 4)
    assert tables.extend(0, 0, 4) and tables.extend(1, 0, 4)
    assert tables.extend(0, 4, 5) and unpromised(tables) == [0]
    assert not tables.extend(1, 4, 5), "none is left"
    assert columns_with_pages(tables, 0, 1) == [0]
    tables.release(0)
    assert tables.extend(1, 4, 5)


def test_what_one_group_lacks_leaves_the_promise_of_another() -> None:
    """The next try finds it; a release gives it back."""
    tables = tables_of(windows=(0, 4), num_pages=(9, 3))
    assert tables.open(0, 4) and tables.open(1, 4)
    assert tables.extend(0, 0, 4) and tables.extend(1, 0, 4)
    assert unpromised(tables) == [6, 0]
    for _ in range(2):
        assert not tables.extend(0, 4, 5)
        assert unpromised(tables) == [5, 0] and columns_with_pages(tables, 0, 0) == [0]
    tables.release(0)
    assert unpromised(tables) == [7, 1]


def test_a_slot_opens_with_the_pages_of_another() -> None:
    tables = tables_of(windows=(0, 6), num_pages=(8, 9))
    assert tables.open(0, 16)
    for start in range(0, 16, 4):
        assert tables.extend(0, start, start + 4)
    held = tables.held(0)
    # Position 12, the first of the last step, sees 7: column 1 and on are there.
    assert [(part.first, len(part.pages)) for part in held] == [(0, 4), (1, 3)]
    shared = [SharedPages(pages=held[0].pages[:3]), SharedPages(first=1, pages=held[1].pages[:2])]
    assert tables.open(1, 16, shared)
    assert tables.held(1) == tuple(shared)
    assert tables.tables[0, 1, :3].tolist() == list(held[0].pages[:3])
    assert tables.pools[0].num_used == 4, "shared pages count once"
    # Three of four pages are there: one is promised. Under the window each is charged its four.
    assert unpromised(tables) == [2, 0]
    assert tables.extend(1, 12, 16) and tables.held(1)[0].pages[3] != held[0].pages[3]
    tables.release(0)
    assert tables.pools[0].num_used == 4 and tables.tables[0, 1, :3].all()
    tables.release(1)
    assert unpromised(tables) == [7, 8]


def test_a_prefix_that_nobody_holds_takes_pages_too() -> None:
    tables = tables_of(num_pages=(6,))
    digests: list[bytes] = []
    extend_digests(digests, list(range(8)), 4)
    assert tables.open(0, 8) and tables.extend(0, 0, 8)
    tables.register(0, digests, 0, 2)
    shared = tables.held(0)
    tables.release(0)
    assert not tables.open(1, 24, shared), "six pages, five are there"
    assert tables.pools[0].num_kept == 2 and unpromised(tables) == [5]
    assert tables.open(1, 20, shared) and unpromised(tables) == [0]
    assert tables.pools[0].num_kept == 0


def test_held_pages_come_back_in_other_places() -> None:
    tables = tables_of(windows=(0, 6))
    assert tables.open(0, 16) and tables.open(1, 8)
    for start in range(0, 12, 4):
        assert tables.extend(0, start, start + 4)
    before = tables.held(0)
    tables.release(0)
    assert tables.extend(1, 0, 8)  # takes pages that it held
    assert tables.open(2, 16)
    pages = tables.fill(2, before)
    after = tables.held(2)
    assert tuple(part.pages for part in after) == pages
    assert [(p.first, p.end) for p in after] == [(p.first, p.end) for p in before]
    assert not set(pages[0]) & set(tables.held(1)[0].pages)
    assert tables.extend(2, 12, 16) and columns_with_pages(tables, 0, 2) == [0, 1, 2, 3]
    tables.release(1)
    tables.release(2)
    assert all(pool.num_unpromised == pool.num_usable for pool in tables.pools)


def test_registered_pages_are_found_where_the_slot_still_has_them() -> None:
    tables = tables_of(windows=(0, 4))
    digests: list[bytes] = []
    extend_digests(digests, list(range(16)), 4)
    assert tables.open(0, 20)
    for start in range(0, 16, 4):
        assert tables.extend(0, start, start + 4)
    full, windowed = tables.held(0)
    tables.register(0, digests, 0, 3)
    found = [[pool.find(one) for one in digests] for pool in tables.pools]
    assert found[0] == [*full.pages[:3], None]
    assert found[1] == [None, None, windowed.pages[0], None], "the window has left the others"
    tables.forget()
    assert all(pool.find(one) is None for pool in tables.pools for one in digests)


def test_of_a_prefix_its_end_goes_first() -> None:
    """A prefix without its beginning is of no use."""
    tables = tables_of(num_pages=(4,))
    digests: list[bytes] = []
    extend_digests(digests, list(range(12)), 4)
    assert tables.open(0, 12) and tables.extend(0, 0, 12)
    tables.register(0, digests, 0, 3)
    tables.release(0)
    assert tables.open(1, 4) and tables.extend(1, 0, 4)
    assert [tables.pools[0].find(one) is not None for one in digests] == [True, True, False]


def test_release_in_the_middle_frees_pages_and_promises() -> None:
    tables = tables_of(windows=(0, 3), chunk_tokens=8)
    assert tables.open(2, 60)
    for start in range(0, 32, 8):
        tables.extend(2, start, start + 8)
    tables.release(2)
    assert not tables.tables.any()
    for _ in range(2):
        assert all(pool.num_used == 0 for pool in tables.pools)
        assert all(pool.num_unpromised == pool.num_usable for pool in tables.pools)
        tables.release(2)  # nothing is freed twice


def test_a_slot_starts_anew_after_release() -> None:
    tables = tables_of(windows=(4,))
    for _ in range(3):
        assert tables.open(0, 12)
        for start in range(0, 12, 4):
            tables.extend(0, start, start + 4)
        assert columns_with_pages(tables, 0, 0) == [1, 2]
        tables.release(0)
