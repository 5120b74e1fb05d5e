"""HOST. The page table of every slot in every cache group, and the pages behind it.

Knows which pages a slot holds; not requests or steps.
"""

import numpy as np

from jaxinfer.config.geometry import Geometry, pages_needed
from jaxinfer.scheduler.page_pool import PagePool


class PageTables:
    """Page tables `[groups, B + 1, N]`, kept in step with one pool a group.

    Row B belongs to no slot and holds null pages: the table of an empty row of a step.
    """

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.pools = [PagePool(count) for count in geometry.num_pages]
        shape = (len(self.pools), geometry.num_slots + 1, geometry.pages_per_row)
        self.tables = np.zeros(shape, np.int32)
        self._left = np.zeros(shape[:2], np.int64)  # promised to a slot and not yet taken
        self._first = np.zeros(shape[:2], np.int64)  # first column that still has a page
        self._end = np.zeros(shape[:2], np.int64)  # one past the last column that has a page

    def needs(self, tokens: int) -> list[int]:
        """The most pages a request of `tokens` tokens holds at once, a group each."""
        step, page = self.geometry.max_prefill_tokens, self.geometry.page_tokens
        return [pages_needed(tokens, page, window, step) for window in self.geometry.group_windows]

    def reserve(self, slot: int, tokens: int) -> bool:
        """Promises a slot the pages for `tokens` tokens in every group, or nothing."""
        needs = self.needs(tokens)
        for group, need in enumerate(needs):
            if not self.pools[group].reserve(need):
                for earlier in range(group):
                    self.pools[earlier].cancel(needs[earlier])
                return False
        self._left[:, slot] = needs
        return True

    def extend(self, slot: int, start: int, end: int) -> None:
        """Makes room for positions [start, end): frees what lies behind a window, takes pages.

        What lies before `start` minus the window is read by no later step.
        """
        page = self.geometry.page_tokens
        for group, window in enumerate(self.geometry.group_windows):
            if window:
                self._drop_before(group, slot, max(0, start - window + 1) // page)
            for column in range(self._end[group, slot], -(-end // page)):
                self.tables[group, slot, column] = self.pools[group].take()
                self._left[group, slot] -= 1
                self._end[group, slot] = column + 1

    def release(self, slot: int) -> None:
        """Frees all pages and promises of a slot."""
        for group, pool in enumerate(self.pools):
            held = self.tables[group, slot, self._first[group, slot] : self._end[group, slot]]
            pool.give_back(held.tolist(), promise=False)
            pool.cancel(int(self._left[group, slot]))
        self.tables[:, slot] = 0
        for array in (self._left, self._first, self._end):
            array[:, slot] = 0

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
