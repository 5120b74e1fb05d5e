"""Tables and pools in step: windows free old pages, reservations are all or nothing."""

import numpy as np

from jaxinfer.scheduler.page_tables import PageTables
from tests.support.records import geometry


def columns_with_pages(tables: PageTables, group: int, slot: int) -> list[int]:
    return np.flatnonzero(tables.tables[group, slot]).tolist()


def test_pages_come_as_positions_do() -> None:
    tables = PageTables(geometry(page_tokens=8))
    assert tables.reserve(1, 20)
    tables.extend(1, 0, 8)
    assert columns_with_pages(tables, 0, 1) == [0]
    tables.extend(1, 8, 9)
    assert columns_with_pages(tables, 0, 1) == [0, 1]
    tables.extend(1, 9, 16)
    assert columns_with_pages(tables, 0, 1) == [0, 1]
    assert tables.pools[0].num_used == 2
    assert columns_with_pages(tables, 0, 0) == []


def test_a_window_frees_what_no_later_step_reads() -> None:
    tables = PageTables(geometry(page_tokens=4, chunk_tokens=4, prefill_rows=(1,), windows=(0, 5)))
    assert tables.reserve(0, 40)
    for start in range(0, 40, 4):
        tables.extend(0, start, start + 4)
        oldest = max(0, start - 4) // 4  # position `start` sees itself and four before it
        assert columns_with_pages(tables, 1, 0) == list(range(oldest, start // 4 + 1))
        assert columns_with_pages(tables, 0, 0) == list(range(start // 4 + 1))
    assert tables.pools[0].num_used == 10 and tables.pools[1].num_used == 2


def test_the_first_chunk_of_a_step_still_has_its_window() -> None:
    """Several chunks in one step: what lies behind the window of the last is read by the first."""
    tables = PageTables(geometry(page_tokens=4, chunk_tokens=4, prefill_rows=(1, 4), windows=(4,)))
    assert tables.reserve(0, 48)
    tables.extend(0, 0, 16)
    # The scheduler extends chunk after chunk, always from the first position of the step.
    for end in (20, 24, 28, 32):
        tables.extend(0, 16, end)
    # Position 16 sees 13, 14 and 15, so column 3 stays, and so do all the step writes.
    assert columns_with_pages(tables, 0, 0) == [3, 4, 5, 6, 7]


def test_a_decode_step_at_a_page_s_edge() -> None:
    tables = PageTables(geometry(page_tokens=4, chunk_tokens=4, prefill_rows=(1,), windows=(4,)))
    assert tables.reserve(0, 20)
    tables.extend(0, 0, 4)
    tables.extend(0, 4, 8)
    expected = {8: [1, 2], 9: [1, 2], 10: [1, 2], 11: [2], 12: [2, 3]}
    for position, columns in expected.items():
        tables.extend(0, position, position + 1)
        assert columns_with_pages(tables, 0, 0) == columns


def test_reserve_is_all_or_nothing_over_groups() -> None:
    made = geometry(
        page_tokens=4, chunk_tokens=4, prefill_rows=(1,), windows=(0, 4), num_pages=(11, 3 + 1)
    )
    tables = PageTables(made)
    assert tables.needs(16) == [4, 3]
    assert tables.reserve(0, 16)
    # The first group has room for another, the second has not: nothing may stay promised.
    assert not tables.reserve(1, 16)
    assert [pool.num_unpromised for pool in tables.pools] == [6, 0]
    tables.release(0)
    assert [pool.num_unpromised for pool in tables.pools] == [10, 3]
    assert tables.reserve(1, 16)


def test_release_in_the_middle_frees_pages_and_promises() -> None:
    tables = PageTables(geometry(page_tokens=4, windows=(0, 3)))
    assert tables.reserve(2, 60)
    for start in range(0, 32, 8):
        tables.extend(2, start, start + 8)
    tables.release(2)
    assert not tables.tables.any()
    for pool in tables.pools:
        assert pool.num_used == 0 and pool.num_unpromised == pool.num_usable
    tables.release(2)  # nothing is freed twice
    assert all(pool.num_unpromised == pool.num_usable for pool in tables.pools)


def test_a_slot_starts_anew_after_release() -> None:
    tables = PageTables(geometry(page_tokens=4, chunk_tokens=4, prefill_rows=(1,), windows=(4,)))
    for _ in range(3):
        assert tables.reserve(0, 12)
        for start in range(0, 12, 4):
            tables.extend(0, start, start + 4)
        assert columns_with_pages(tables, 0, 0) == [1, 2]
        tables.release(0)
