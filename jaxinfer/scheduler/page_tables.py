"""HOST. The page table of every slot in every cache group, and the pages behind it.

Knows which pages a slot holds; not requests or steps.
"""

from collections.abc import Sequence

import numpy as np

from jaxinfer.config.geometry import Geometry, pages_needed
from jaxinfer.scheduler.page_pool import PagePool
from jaxinfer.scheduler.prefix_index import SharedPages, first_column


class PageTables:
    """Page tables `[groups, B + 1, N]`, kept in step with one pool a group.

    Row B belongs to no slot and holds null pages: the table of an empty row of a step.
    """

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.pools = [
            PagePool(count, charges_shares=window > 0)
            for count, window in zip(geometry.num_pages, geometry.group_windows, strict=True)
        ]
        shape = (len(self.pools), geometry.num_slots + 1, geometry.pages_per_row)
        self.tables = np.zeros(shape, np.int32)
        self._left = np.zeros(shape[:2], np.int64)  # promised to a slot and not yet taken
        self._first = np.zeros(shape[:2], np.int64)  # first column that still has a page
        self._end = np.zeros(shape[:2], np.int64)  # one past the last column that has a page

    def needs(self, tokens: int) -> list[int]:
        """The most pages a request of `tokens` tokens holds at once, a group each."""
        step, page = self.geometry.max_prefill_tokens, self.geometry.page_tokens
        return [pages_needed(tokens, page, window, step) for window in self.geometry.group_windows]

    def open(
        self,
        slot: int,
        tokens: int,
        shared: Sequence[SharedPages] | None = None,
        *,
        spare: int = 0,
    ) -> bool:
        """Gives an empty slot the pages it shares and promises it what `tokens` tokens need more.

        False, and nothing changed, if a group has too few pages: `spare` ones must stay unpromised.
        """
        taken_over = shared or [SharedPages()] * len(self.pools)
        lefts = [
            max(0, need - len(part.pages))
            for need, part in zip(self.needs(tokens), taken_over, strict=True)
        ]
        for pool, part, left in zip(self.pools, taken_over, lefts, strict=True):
            if pool.cost(part.pages) + left + spare > pool.num_unpromised:
                return False
        for group, (part, left) in enumerate(zip(taken_over, lefts, strict=True)):
            self.pools[group].share(part.pages)
            self.pools[group].reserve(left)
            self.tables[group, slot, part.first : part.end] = part.pages
            self._first[group, slot], self._end[group, slot] = part.first, part.end
            self._left[group, slot] = left
        return True

    def extend(self, slot: int, start: int, end: int) -> bool:
        """Makes room for positions [start, end): frees what lies behind a window, takes pages.

        What lies before `start` minus the window is read by no later step. False if a group has too
        few pages; those of the other groups stay promised to the slot.
        """
        page = self.geometry.page_tokens
        columns = -(-end // page)
        for group, window in enumerate(self.geometry.group_windows):
            if window:
                self._drop_before(group, slot, first_column(window, start, page))
            if not self._promise(group, slot, columns - int(self._end[group, slot])):
                return False
        for group, pool in enumerate(self.pools):
            for column in range(int(self._end[group, slot]), columns):
                self.tables[group, slot, column] = pool.take()
                self._left[group, slot] -= 1
                self._end[group, slot] = column + 1
        return True

    def held(self, slot: int) -> tuple[SharedPages, ...]:
        """The pages of a slot, a group each."""
        return tuple(
            SharedPages(first=int(first), pages=tuple(row[first:end].tolist()))
            for row, first, end in zip(
                self.tables[:, slot], self._first[:, slot], self._end[:, slot], strict=True
            )
        )

    def fill(self, slot: int, places: Sequence[SharedPages]) -> tuple[tuple[int, ...], ...]:
        """Takes a page for each column that was held once: the new pages, a group each."""
        for group, (pool, part) in enumerate(zip(self.pools, places, strict=True)):
            for column in range(part.first, part.end):
                self.tables[group, slot, column] = pool.take()
            self._left[group, slot] -= len(part.pages)
            self._first[group, slot], self._end[group, slot] = part.first, part.end
        return tuple(part.pages for part in self.held(slot))

    def register(self, slot: int, digests: Sequence[bytes], first: int, end: int) -> None:
        """Notes the content of the slot's pages in columns [first, end)."""
        for group, pool in enumerate(self.pools):
            for column in range(max(first, int(self._first[group, slot])), end):
                pool.register(int(self.tables[group, slot, column]), digests[column])

    def release(self, slot: int) -> None:
        """Lets go of all pages and promises of a slot."""
        for group, pool in enumerate(self.pools):
            held = self.tables[group, slot, self._first[group, slot] : self._end[group, slot]]
            # The last first: of pages that are kept, the oldest goes first, and a prefix without
            # its beginning is of no use.
            pool.give_back(held[::-1].tolist(), promise=False)
            pool.cancel(int(self._left[group, slot]))
        self.tables[:, slot] = 0
        for array in (self._left, self._first, self._end):
            array[:, slot] = 0

    def forget(self) -> None:
        """Forgets what pages hold: no prefix is found any more."""
        for pool in self.pools:
            pool.forget()

    def _promise(self, group: int, slot: int, count: int) -> bool:
        """Makes sure that `count` pages are promised to the slot."""
        missing = count - int(self._left[group, slot])
        if missing <= 0:
            return True
        if not self.pools[group].reserve(missing):
            return False
        self._left[group, slot] += missing
        return True

    def _drop_before(self, group: int, slot: int, column: int) -> None:
        first = int(self._first[group, slot])
        column = min(column, int(self._end[group, slot]))
        if column <= first:
            return
        held = self.tables[group, slot, first:column]
        self.pools[group].give_back(held.tolist(), promise=True)
        self._left[group, slot] += column - first
        held[:] = 0
        self._first[group, slot] = column
