"""HOST. The pages of one cache group: which are free, which are promised.

    page 0        1 ........................................ P-1
    null page    | used by requests | promised, not yet taken | unpromised |
                                     `reserve` moves this line ────────▲

A request first reserves its worst case and then takes pages one by one, so that a running request
never finds the pool empty. Does not know who holds a page.
"""

from collections.abc import Iterable


class PagePool:
    """Pages 1 to num_pages - 1; page 0 is the null page and belongs to nobody."""

    def __init__(self, num_pages: int) -> None:
        self._free = list(range(num_pages - 1, 0, -1))
        self._promised = 0
        self.num_usable = num_pages - 1

    @property
    def num_used(self) -> int:
        """Pages that requests hold."""
        return self.num_usable - len(self._free)

    @property
    def num_unpromised(self) -> int:
        """Pages that a new request could still reserve."""
        return len(self._free) - self._promised

    def reserve(self, count: int) -> bool:
        """Promises `count` pages to a request; False, and nothing changed, if too few are left."""
        if count > self.num_unpromised:
            return False
        self._promised += count
        return True

    def take(self) -> int:
        """One of the promised pages."""
        assert self._promised > 0, "a page is taken without a reservation"
        self._promised -= 1
        return self._free.pop()

    def give_back(self, pages: Iterable[int], *, promise: bool) -> None:
        """Frees pages; with `promise` their holder may take as many again."""
        for page in pages:
            self._free.append(page)
            self._promised += int(promise)

    def cancel(self, count: int) -> None:
        """Gives up the promise of `count` pages that were not taken."""
        assert count <= self._promised, "more promises cancelled than made"
        self._promised -= count
