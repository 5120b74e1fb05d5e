"""HOST. The pages of one cache group: free, held, promised, or kept for whoever needs them again.

    page 0       1 ......................................................... P-1
    null page    | held by requests | kept: known content, no holder | empty |
                                    |<------- can be taken ---------------->|
                   of these `promised` belong to running requests; `reserve` moves that line

A request first reserves what it may need and then takes pages one by one, so that it does not find
the pool empty half-way. A page may have several holders (a shared prefix). One with known content
keeps it after its last holder has gone, until it is taken anew: least recently held first. Does not
know who holds a page, nor what a digest stands for.
"""

from collections import OrderedDict
from collections.abc import Iterable


class PagePool:
    """Pages 1 to num_pages - 1; page 0 is the null page and belongs to nobody.

    charges_shares: a page counts once for every holder. Under a sliding window holders let go of
    pages one by one and may take others for them: each needs a place of its own then.
    """

    def __init__(self, num_pages: int, *, charges_shares: bool = False) -> None:
        self.num_usable = num_pages - 1
        self._charges_shares = charges_shares
        self._empty = list(range(num_pages - 1, 0, -1))
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._holders = [0] * num_pages
        self._num_shares = 0  # holders beyond the first of each page
        self._promised = 0
        self._digest_of: dict[int, bytes] = {}
        self._page_of: dict[bytes, int] = {}

    @property
    def num_used(self) -> int:
        """Pages that requests hold."""
        return self.num_usable - len(self._empty) - len(self._kept)

    @property
    def num_kept(self) -> int:
        """Pages that nobody holds and whose content may be found again."""
        return len(self._kept)

    @property
    def num_unpromised(self) -> int:
        """Pages that a new request could still reserve."""
        shares = self._num_shares if self._charges_shares else 0
        return self.num_usable - self.num_used - shares - self._promised

    def reserve(self, count: int) -> bool:
        """Promises `count` pages to a request; False, and nothing changed, if too few are left."""
        if count > self.num_unpromised:
            return False
        self._promised += count
        return True

    def cancel(self, count: int) -> None:
        """Gives up the promise of `count` pages that were not taken."""
        assert count <= self._promised, "more promises cancelled than made"
        self._promised -= count

    def take(self) -> int:
        """One of the promised pages, its old content forgotten."""
        assert self._promised > 0, "a page is taken without a reservation"
        self._promised -= 1
        page = self._empty.pop() if self._empty else self._forget_oldest()
        self._holders[page] = 1
        return page

    def find(self, digest: bytes) -> int | None:
        """The page whose content has this digest."""
        return self._page_of.get(digest)

    def cost(self, pages: Iterable[int]) -> int:
        """How many unpromised pages it takes to share these."""
        return sum(self._charges_shares or not self._holders[page] for page in pages)

    def share(self, pages: Iterable[int]) -> None:
        """Adds a holder to each page; `cost` says what must be unpromised."""
        for page in pages:
            if not self._holders[page]:
                del self._kept[page]
            self._num_shares += int(self._holders[page] > 0)
            self._holders[page] += 1

    def register(self, page: int, digest: bytes) -> None:
        """Notes a held page's content, unless another page has the same."""
        if digest not in self._page_of and page not in self._digest_of:
            self._digest_of[page], self._page_of[digest] = digest, page

    def give_back(self, pages: Iterable[int], *, promise: bool) -> None:
        """Takes a holder off each page; with `promise` that holder may take as many again."""
        for page in pages:
            self._holders[page] -= 1
            self._promised += int(promise)
            if self._holders[page]:
                self._num_shares -= 1
            elif page in self._digest_of:
                self._kept[page] = None
            else:
                self._empty.append(page)

    def forget(self) -> None:
        """Forgets all content: pages that nobody holds are empty."""
        self._empty += self._kept
        self._kept.clear()
        self._digest_of.clear()
        self._page_of.clear()

    def _forget_oldest(self) -> int:
        page, _ = self._kept.popitem(last=False)
        del self._page_of[self._digest_of.pop(page)]
        return page
