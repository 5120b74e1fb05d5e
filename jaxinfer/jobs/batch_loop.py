"""JOINT. Requests of a batch job through the engine: read ahead only as far as the engine needs.

    input ──▶ shelf: prompts that begin alike are brought together ──▶ engine ──▶ results
              (a few requests per slot, some megabytes at most)        (twice its slots)

Knows the engine's `add`, `step` and `abort`; neither files nor JSON.
"""

import heapq
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jaxinfer.config.request_options import RequestOptions
from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.engine.outputs import RequestOutput

if TYPE_CHECKING:
    from jaxinfer.llm import LLM

SHELF_BYTES = 16 * 2**20
_SHELF_PER_SLOT = 4
_AHEAD_PER_SLOT = 2
_ALIKE_CHARACTERS = 128  # of prompts that share pages: about half a page, or more of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A request that is ready for the engine.

    prompt: makes the prompt when its turn comes (a conversation is rendered then); what it raises
    as a RequestError is the request's error. key: requests with neighbouring keys begin alike.
    num_bytes: of its input. tag: the caller's.
    """

    prompt: Callable[[], Any]
    params: SamplingParams
    options: RequestOptions
    key: str
    num_bytes: int
    tag: Any


class Shelf:
    """Requests that wait, given out so that those that begin alike follow one another.

    Requests whose keys begin alike are a group. Groups come in the order of their first requests:
    where nothing is alike nothing is reordered, which would only bring long answers to the end,
    where slots run empty. Within a group it goes by the whole key, in rounds: what comes behind the
    round's place waits for the next, so that nobody waits for more than a round. Example of a shelf
    of three, whose groups are the letters: from z, b, a, b, a come z, b, b, a, a.

    Args:
        source: of requests. count: how many are held. is_sorted: False keeps the source's order.
    """

    def __init__(self, source: Iterator[Ready], count: int, *, is_sorted: bool) -> None:
        self._source = source
        self._count = count
        self._is_sorted = is_sorted
        self._heap: list[tuple[int, int, str, int, Ready]] = []
        self._groups: dict[str, _Group] = {}
        self._last_group: str | None = None
        self._num_bytes = 0
        self._num_taken = 0
        self._round, self._last_place, self._last_key = 0, 0, ""
        self._is_exhausted = False

    def take(self) -> Ready | None:
        """The next request; None when there is none left."""
        self._refill()
        if not self._heap:
            return None
        self._round, self._last_place, self._last_key, _, ready = heapq.heappop(self._heap)
        self._num_bytes -= ready.num_bytes
        self._leave(self._group_key(ready))
        return ready

    def _refill(self) -> None:
        while not self._is_exhausted and (
            not self._heap or (len(self._heap) < self._count and self._num_bytes < SHELF_BYTES)
        ):
            ready = next(self._source, None)
            if ready is None:
                self._is_exhausted = True
                return
            self._put(ready)

    def _put(self, ready: Ready) -> None:
        group = self._groups.setdefault(self._group_key(ready), _Group(place=self._num_taken))
        group.num_held += 1
        key = ready.key if self._is_sorted else ""
        its_round = self._round + ((group.place, key) < (self._last_place, self._last_key))
        heapq.heappush(self._heap, (its_round, group.place, key, self._num_taken, ready))
        self._num_taken += 1
        self._num_bytes += ready.num_bytes

    def _leave(self, group: str) -> None:
        """A request of the group is given out; a group keeps its place while it is the last one."""
        self._groups[group].num_held -= 1
        if group != self._last_group:
            if self._last_group is not None and not self._groups[self._last_group].num_held:
                del self._groups[self._last_group]
            self._last_group = group

    def _group_key(self, ready: Ready) -> str:
        return ready.key[:_ALIKE_CHARACTERS] if self._is_sorted else ""


@dataclass(slots=True)
class _Group:
    """place: when its first request came. num_held: requests on the shelf."""

    place: int
    num_held: int = 0


@dataclass(slots=True)
class Stop:
    """Whether a job is to come to its end: running requests finish, no other starts."""

    wanted: bool = False


@dataclass(slots=True)
class _Loop:
    """Requests under way, by the engine's id."""

    llm: "LLM"
    shelf: Shelf
    stop: Stop
    open: dict[str, tuple[Any, Ready]] = field(default_factory=dict)
    num_open: int = 0  # completions

    def fill(self) -> Iterator[tuple[Ready, RequestOutput]]:
        """Adds requests up to twice the slots; gives back those that were refused."""
        engine = self.llm.engine
        most = _AHEAD_PER_SLOT * self.llm.geometry.num_slots
        while self.num_open < most and not self.stop.wanted:
            ready = self.shelf.take()
            if ready is None:
                return
            task = engine.add(ready.prompt(), ready.params, ready.options)
            if task.is_finished:
                yield ready, task.output(engine.intake.tokenizer)
            else:
                self.open[task.request_id] = (task, ready)
                self.num_open += ready.params.n

    def step(self) -> Iterator[tuple[Ready, RequestOutput]]:
        """One step of the engine; gives back the requests that it ended."""
        engine = self.llm.engine
        ended = [one.request_id for one in engine.step() if one.finish_reason is not None]
        self.num_open -= len(ended)
        for name in dict.fromkeys(ended):  # several completions of one may end together
            task, ready = self.open[name]
            if task.is_finished:
                del self.open[name]
                yield ready, task.output(engine.intake.tokenizer)

    def drop_waiting(self) -> None:
        """Takes out the requests that have not begun."""
        for name, (task, _) in list(self.open.items()):
            if all(one.request.admitted_s is None for one in task.completions):
                self.llm.engine.abort(task)
                del self.open[name]


def run_requests(
    llm: "LLM", source: Iterator[Ready], stop: Stop
) -> Generator[tuple[Ready, RequestOutput] | None, None, None]:
    """Runs every request of `source`.

    Args:
        stop: once wanted, what runs is finished and the rest is left.

    Yields:
        Requests with their outputs as they end; None after every step, for the caller's chores.
        Closing the iterator ends what is under way and leaves an idle engine.
    """
    slots = llm.geometry.num_slots
    is_sorted = llm.engine_config.enable_prefix_caching
    loop = _Loop(llm, Shelf(source, _SHELF_PER_SLOT * slots, is_sorted=is_sorted), stop)
    is_dropping = False
    try:
        while True:
            yield from loop.fill()
            if stop.wanted and not is_dropping:
                is_dropping = True
                loop.drop_waiting()
            if not loop.open:
                return
            yield from loop.step()
            yield None
    except BaseException:
        llm.engine.reset()
        raise
    finally:
        if llm.engine.has_work and not loop.open:
            _drain(llm)


def _drain(llm: "LLM") -> None:
    """Reads the steps that are still in flight after the last request's end."""
    while llm.engine.has_work:
        llm.engine.step()
