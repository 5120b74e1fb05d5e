"""Who is next: class, priority, arrival, and nobody is overtaken for ever."""

from jaxinfer.scheduler.request import Request
from jaxinfer.scheduler.waiting_queue import MAX_OVERTAKES, WaitingQueue, rank
from tests.scheduler.requests import traced


def queue_of(*requests: Request, by_priority: bool = True) -> WaitingQueue:
    queue = WaitingQueue(by_priority=by_priority)
    for request in requests:
        queue.add(request)
    return queue


def served(queue: WaitingQueue) -> list[int]:
    """Orders of the requests as they are admitted."""
    orders = []
    while (first := queue.first()) is not None:
        orders.append(first.order)
        queue.admit(first)
    return orders


def test_nobody_waits() -> None:
    queue = queue_of()
    assert queue.first() is None and len(queue) == 0 and list(queue) == []


def test_arrival_decides_whoever_was_queued_first() -> None:
    assert served(queue_of(*(traced(order, 3) for order in (3, 1, 2)))) == [1, 2, 3]


def test_lower_priority_numbers_go_first_and_ties_by_arrival() -> None:
    priorities = {1: 5, 2: 0, 3: -1, 4: 0, 5: -1}
    requests = [traced(order, 3, priority=value) for order, value in priorities.items()]
    assert served(queue_of(*requests)) == [3, 5, 2, 4, 1]
    assert served(queue_of(*requests, by_priority=False)) == [1, 2, 3, 4, 5]


def test_latency_sensitive_requests_go_before_all_priorities() -> None:
    requests = [
        traced(1, 3, priority=-9),
        traced(2, 3, latency_sensitive=True, priority=9),
        traced(3, 3, latency_sensitive=True, priority=0),
    ]
    assert served(queue_of(*requests)) == [3, 2, 1]
    assert served(queue_of(*requests, by_priority=False)) == [2, 3, 1]


def test_rank() -> None:
    one = traced(4, 3, priority=7)
    assert rank(one, by_priority=True) == (True, 7, 4)
    assert rank(one, by_priority=False) == (True, 0, 4)


def test_the_oldest_is_next_once_it_was_overtaken_often() -> None:
    queue = queue_of(traced(1, 3, priority=1), traced(2, 3, priority=2))
    for order in range(3, 3 + 3 * MAX_OVERTAKES):
        queue.add(traced(order, 1))
    orders = served(queue)
    assert orders.index(1) == MAX_OVERTAKES
    # Then the count is the next one's.
    assert orders.index(2) == 2 * MAX_OVERTAKES + 1
    assert sorted(orders) == list(range(1, 3 + 3 * MAX_OVERTAKES))


def test_removed_requests_are_never_served() -> None:
    requests = [traced(order, 3, priority=order % 3) for order in range(1, 9)]
    queue = queue_of(*requests)
    for gone in (requests[2], requests[0], requests[7]):
        queue.remove(gone)
        assert gone not in queue
    assert len(queue) == 5 and {one.order for one in queue} == {2, 4, 5, 6, 7}
    assert served(queue) == [6, 4, 7, 2, 5]


def test_the_count_of_overtaking_ends_with_the_oldest() -> None:
    oldest, next_one = traced(1, 3, priority=1), traced(2, 3, priority=1)
    queue = queue_of(oldest, next_one)
    for order in range(3, 3 + MAX_OVERTAKES):
        queue.add(traced(order, 1))
        first = queue.first()
        assert first is not None
        queue.admit(first)
    assert queue.first() is oldest
    queue.remove(oldest)
    queue.add(traced(999, 1))
    first = queue.first()
    assert first is not None and first.order == 999, "the next was not overtaken yet"


def test_a_preempted_request_has_the_place_of_its_arrival() -> None:
    requests = [traced(order, 3) for order in (1, 2, 3)]
    queue = queue_of(*requests)
    for _ in range(3):  # its former entries are void
        queue.admit(requests[0])
        assert requests[0] not in queue and len(queue) == 2
        queue.add(requests[0])
    assert len(queue) == 3
    assert served(queue) == [1, 2, 3]


def test_taken_out_and_queued_again_in_between() -> None:
    low, high = traced(1, 3, priority=1), traced(2, 3)
    queue = queue_of(low, high)
    queue.admit(high)
    queue.remove(low)
    queue.add(high)
    queue.add(low)
    assert served(queue) == [2, 1]
