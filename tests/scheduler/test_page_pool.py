"""The pool's promises, its memory of content, and that pages are neither lost nor given twice."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from jaxinfer.scheduler.page_pool import PagePool


def filled(count: int, *, usable: int = 4, charges_shares: bool = False) -> tuple[PagePool, list]:
    """A pool of `usable` pages and `count` of them, taken."""
    pool = PagePool(usable + 1, charges_shares=charges_shares)
    assert pool.reserve(count)
    return pool, [pool.take() for _ in range(count)]


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


def test_a_page_that_nobody_holds_keeps_its_content_until_it_is_taken() -> None:
    pool, (page,) = filled(1, usable=2)
    pool.register(page, b"text")
    pool.give_back([page], promise=False)
    assert pool.find(b"text") == page
    assert (pool.num_used, pool.num_kept, pool.num_unpromised) == (0, 1, 2)
    assert pool.reserve(2)
    assert pool.take() != page and pool.find(b"text") == page, "an empty one goes first"
    assert pool.take() == page and pool.find(b"text") is None
    assert pool.num_kept == 0


def test_content_without_a_digest_is_not_kept() -> None:
    pool, pages = filled(2)
    pool.give_back(pages, promise=False)
    assert pool.num_kept == 0 and pool.find(b"text") is None


def test_the_least_recently_held_goes_first() -> None:
    pool, pages = filled(3, usable=3)
    for page, name in zip(pages, (b"a", b"b", b"c"), strict=True):
        pool.register(page, name)
    pool.give_back(pages, promise=False)
    pool.share([pages[0]])  # held again: the youngest from now on
    pool.give_back([pages[0]], promise=False)
    assert pool.reserve(3)
    assert [pool.take() for _ in range(3)] == [pages[1], pages[2], pages[0]]


def test_a_shared_page_is_used_until_its_last_holder_has_gone() -> None:
    pool, (page,) = filled(1)
    pool.register(page, b"text")
    assert pool.cost([page]) == 0
    pool.share([page])
    pool.share([page])
    for _ in range(2):
        pool.give_back([page], promise=False)
        assert pool.num_used == 1 and pool.num_kept == 0
    pool.give_back([page], promise=False)
    assert pool.num_used == 0 and pool.num_kept == 1


def test_sharing_a_kept_page_costs_one() -> None:
    pool, (page,) = filled(1)
    pool.register(page, b"text")
    pool.give_back([page], promise=False)
    assert pool.cost([page]) == 1 and pool.num_unpromised == 4
    pool.share([page])
    assert pool.num_unpromised == 3 and pool.num_used == 1 and pool.num_kept == 0


def test_under_a_window_every_holder_is_charged() -> None:
    """Each may let go of the page and take another for it, while the other still holds it."""
    pool, (page,) = filled(1, charges_shares=True)
    assert pool.cost([page]) == 1
    pool.share([page])
    assert pool.num_used == 1 and pool.num_unpromised == 2
    pool.give_back([page], promise=True)
    assert pool.num_used == 1 and pool.num_unpromised == 2, "the place of a share is a promise now"
    pool.take()
    assert pool.num_used == 2 and pool.num_unpromised == 2
    pool.give_back([page], promise=False)
    assert pool.num_unpromised == 3


def test_equal_content_is_noted_once() -> None:
    pool, (first, second) = filled(2)
    pool.register(first, b"text")
    pool.register(second, b"text")
    assert pool.find(b"text") == first
    pool.register(first, b"other")
    assert pool.find(b"other") is None, "a page has one content"
    pool.give_back([second], promise=False)
    assert pool.num_kept == 0 and pool.find(b"text") == first


def test_forget() -> None:
    pool, (held, kept) = filled(2)
    pool.register(held, b"held")
    pool.register(kept, b"kept")
    pool.give_back([kept], promise=False)
    pool.forget()
    assert pool.find(b"held") is None and pool.find(b"kept") is None
    assert pool.num_kept == 0 and pool.num_used == 1 and pool.num_unpromised == 3
    pool.register(held, b"anew")
    assert pool.find(b"anew") == held
    pool.give_back([held], promise=False)
    assert pool.reserve(4) and len({pool.take() for _ in range(4)}) == 4


class PoolMachine(RuleBasedStateMachine):
    """Holders that reserve, take, share, note, give back and leave, against counts kept beside."""

    charges_shares = False

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(9, charges_shares=self.charges_shares)
        self.promised: list[int] = []
        self.held: list[list[int]] = []
        self.names: dict[bytes, int] = {}
        self.num_names = 0

    @property
    def num_places(self) -> int:
        """What holders and promises take of the pool."""
        held = [page for pages in self.held for page in pages]
        return (len(held) if self.charges_shares else len(set(held))) + sum(self.promised)

    def holder(self, data: st.DataObject, counts: list) -> int:
        return data.draw(st.sampled_from([i for i, one in enumerate(counts) if one]))

    @rule(count=st.integers(0, 10))
    def reserve(self, count: int) -> None:
        fits = count <= 8 - self.num_places
        assert self.pool.reserve(count) == fits
        if fits:
            self.promised.append(count)
            self.held.append([])

    @precondition(lambda self: any(self.promised))
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        who = self.holder(data, self.promised)
        page = self.pool.take()
        assert all(page not in pages for pages in self.held)
        self.names = {name: other for name, other in self.names.items() if other != page}
        self.held[who].append(page)
        self.promised[who] -= 1

    @precondition(lambda self: any(self.held))
    @rule(data=st.data())
    def note(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(self.held[self.holder(data, self.held)]))
        self.num_names += 1
        name = str(self.num_names).encode()
        self.pool.register(page, name)
        if page not in self.names.values():
            self.names[name] = page

    @precondition(lambda self: self.names and self.held)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        page = self.names[data.draw(st.sampled_from(sorted(self.names)))]
        who = data.draw(st.integers(0, len(self.held) - 1))
        if page not in self.held[who] and self.pool.cost([page]) <= self.pool.num_unpromised:
            self.pool.share([page])
            self.held[who].append(page)

    @precondition(lambda self: any(self.held))
    @rule(data=st.data())
    def slide(self, data: st.DataObject) -> None:
        who = self.holder(data, self.held)
        page = self.held[who][0]
        if self.charges_shares or sum(page in pages for pages in self.held) == 1:
            self.pool.give_back([self.held[who].pop(0)], promise=True)
            self.promised[who] += 1

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        who = data.draw(st.integers(0, len(self.held) - 1))
        self.pool.give_back(self.held.pop(who), promise=False)
        self.pool.cancel(self.promised.pop(who))

    @rule()
    def forget(self) -> None:
        self.pool.forget()
        self.names = {}

    @invariant()
    def every_page_has_one_place(self) -> None:
        held = {page for pages in self.held for page in pages}
        assert self.pool.num_used == len(held)
        assert self.pool.num_kept == len(set(self.names.values()) - held)
        assert self.pool.num_unpromised == 8 - self.num_places >= 0
        assert all(self.pool.find(name) == page for name, page in self.names.items())


class ChargingMachine(PoolMachine):
    """The same for a group with a window."""

    charges_shares = True


MACHINE = settings(
    max_examples=40, stateful_step_count=30, derandomize=True, deadline=None, database=None
)
TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = MACHINE
TestChargingMachine = ChargingMachine.TestCase
TestChargingMachine.settings = MACHINE
