"""HOST. Requests that wait for a slot, and who of them is next.

Order: latency-sensitive requests first, then (where the policy says so) the lower priority, then
arrival. So that nobody waits for ever, the oldest is next once MAX_OVERTAKES younger ones have been
admitted before it. Knows no slots and no pages.
"""

import heapq

from jaxinfer.scheduler.request import Request

MAX_OVERTAKES = 64

Rank = tuple[bool, int, int]


def rank(request: Request, *, by_priority: bool) -> Rank:
    """Sort key of a request: the lowest is served first."""
    priority = request.options.priority if by_priority else 0
    return (not request.options.latency_sensitive, priority, request.order)


class WaitingQueue:
    """A queue by rank; removal and the bound on overtaking are cheap at any length."""

    def __init__(self, *, by_priority: bool) -> None:
        self._by_priority = by_priority
        self._by_rank: list[tuple[Rank, int, Request]] = []
        self._by_order: list[tuple[int, int, Request]] = []
        self._entries: dict[Request, int] = {}  # the number of its entry; older ones are void
        self._num_entries = 0
        self._num_overtakes = 0  # of the oldest

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self):
        return iter(self._entries)

    def __contains__(self, request: object) -> bool:
        return request in self._entries

    def add(self, request: Request) -> None:
        """Queues a request; one that was preempted keeps the place of its arrival."""
        self._num_entries += 1
        self._entries[request] = self._num_entries
        key = rank(request, by_priority=self._by_priority)
        heapq.heappush(self._by_rank, (key, self._num_entries, request))
        heapq.heappush(self._by_order, (request.order, self._num_entries, request))

    def first(self) -> Request | None:
        """Who is next, or None."""
        if not self._entries:
            return None
        return self._oldest() if self._num_overtakes >= MAX_OVERTAKES else self._top(self._by_rank)

    def admit(self, request: Request) -> None:
        """Takes out a request that got a slot."""
        is_oldest = request is self._oldest()
        self._num_overtakes = 0 if is_oldest else self._num_overtakes + 1
        del self._entries[request]

    def remove(self, request: Request) -> None:
        """Takes out a request that is not served any more."""
        if request is self._oldest():
            self._num_overtakes = 0
        del self._entries[request]

    def _oldest(self) -> Request:
        return self._top(self._by_order)

    def _top(self, heap: list) -> Request:
        while self._entries.get(heap[0][2]) != heap[0][1]:
            heapq.heappop(heap)
        return heap[0][2]
