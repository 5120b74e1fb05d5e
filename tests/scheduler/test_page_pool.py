"""The pool's promises, and that pages are neither lost nor given twice."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from jaxinfer.scheduler.page_pool import PagePool


def test_the_null_page_belongs_to_nobody() -> None:
    pool = PagePool(5)
    assert pool.num_usable == 4 and pool.num_used == 0 and pool.num_unpromised == 4
    assert pool.reserve(4)
    assert sorted(pool.take() for _ in range(4)) == [1, 2, 3, 4]
    assert pool.num_used == 4


def test_a_reservation_that_does_not_fit_changes_nothing() -> None:
    pool = PagePool(5)
    assert pool.reserve(3)
    assert not pool.reserve(2)
    assert pool.num_unpromised == 1 and pool.reserve(1)


def test_taking_without_a_reservation_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="without a reservation"):
        PagePool(5).take()


def test_cancelling_more_than_was_promised_is_our_bug() -> None:
    pool = PagePool(5)
    pool.reserve(1)
    with pytest.raises(AssertionError, match="more promises"):
        pool.cancel(2)


def test_pages_given_back_with_a_promise_are_nobody_else_s() -> None:
    pool = PagePool(3)
    assert pool.reserve(2)
    page = pool.take()
    pool.give_back([page], promise=True)
    assert pool.num_used == 0 and pool.num_unpromised == 0 and not pool.reserve(1)
    pool.take()
    pool.cancel(1)
    assert pool.num_unpromised == 1


class PoolMachine(RuleBasedStateMachine):
    """Holders that reserve, take, give back and leave, against a count kept beside the pool."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(9)
        self.promised: list[int] = []
        self.held: list[list[int]] = []

    @rule(count=st.integers(0, 10))
    def reserve(self, count: int) -> None:
        taken = sum(map(len, self.held)) + sum(self.promised)
        assert self.pool.reserve(count) == (count <= 8 - taken)
        if count <= 8 - taken:
            self.promised.append(count)
            self.held.append([])

    @precondition(lambda self: any(self.promised))
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        who = data.draw(st.sampled_from([i for i, left in enumerate(self.promised) if left]))
        self.held[who].append(self.pool.take())
        self.promised[who] -= 1

    @precondition(lambda self: any(self.held))
    @rule(data=st.data())
    def slide(self, data: st.DataObject) -> None:
        who = data.draw(st.sampled_from([i for i, pages in enumerate(self.held) if pages]))
        self.pool.give_back([self.held[who].pop(0)], promise=True)
        self.promised[who] += 1

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        who = data.draw(st.integers(0, len(self.held) - 1))
        self.pool.give_back(self.held.pop(who), promise=False)
        self.pool.cancel(self.promised.pop(who))

    @invariant()
    def every_page_has_one_place(self) -> None:
        held = [page for pages in self.held for page in pages]
        assert len(set(held)) == len(held) and set(held) <= set(range(1, 9))
        assert self.pool.num_used == len(held)
        assert self.pool.num_unpromised == 8 - len(held) - sum(self.promised)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=40, stateful_step_count=30, derandomize=True)
