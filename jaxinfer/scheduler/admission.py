"""HOST. How a request gets into a slot: with a cached prefix, beside a sibling, or back from host.

Each way opens the slot's page table and leaves the chores that the device has to do before the next
step. Nothing is changed where the pages do not suffice. Does not choose who is admitted.
"""

from dataclasses import dataclass, field

from jaxinfer.config.engine_config import EngineConfig
from jaxinfer.config.step_plan import Chore, CopyPlan, SwapPlan
from jaxinfer.scheduler.page_tables import PageTables
from jaxinfer.scheduler.prefix_index import (
    CachedPrefix,
    SharedPages,
    cached_prefix,
    extend_digests,
    first_column,
)
from jaxinfer.scheduler.request import Request
from jaxinfer.scheduler.seating import needs_seat, seat_plan


@dataclass(slots=True, kw_only=True)
class Admission:
    """Ways into a slot. vocab_size: V, for what the device keeps of a request."""

    pages: PageTables
    ask: EngineConfig
    vocab_size: int
    chores: list[Chore] = field(default_factory=list)
    num_queries: int = 0  # prompt tokens that were looked up in the prefix cache
    num_hits: int = 0  # those that were there

    def admit(self, request: Request, slot: int, *, spare: int) -> bool:
        """Opens a slot for a request, or says False and changes nothing.

        spare: pages of each group that must stay unpromised.
        """
        if request.swapped is not None:
            return self._swap_in(request, slot, spare)
        return self._fork(request, slot, spare) or self._start(request, slot, spare)

    def take_chores(self) -> tuple[Chore, ...]:
        """What is to be done before the next step, in order; once."""
        chores, self.chores = tuple(self.chores), []
        return chores

    def preempt(self, request: Request, slot: int) -> None:
        """Closes the slot of a request that will come back, by the configured way."""
        request.num_preemptions += 1
        if self.ask.preemption == "swap":
            # Not pages of drafts that were not accepted: they hold nothing, and take room.
            size = self.pages.geometry.page_tokens
            request.swapped = tuple(
                part.before(-(-request.num_scheduled // size)) for part in self.pages.held(slot)
            )
            pages = tuple(part.pages for part in request.swapped)
            self.chores.append(SwapPlan(key=request.order, is_out=True, pages=pages))
        else:
            request.num_computed = request.num_scheduled = request.num_registered = 0
        self.pages.release(slot)

    def drop(self, request: Request) -> None:
        """Forgets copies to and from the host for a request that is gone."""
        self.chores = [
            chore
            for chore in self.chores
            if not (isinstance(chore, SwapPlan) and chore.key == request.order)
        ]

    def register(self, request: Request, num_tokens: int) -> None:
        """Notes the content of the full pages among a request's first tokens."""
        if not (self.ask.enable_prefix_caching and request.options.use_prefix_cache):
            return
        size = self.pages.geometry.page_tokens
        end = num_tokens // size
        if end <= request.num_registered or request.slot is None:
            return
        extend_digests(request.page_digests, request.known_ids(0, end * size), size)
        self.pages.register(request.slot, request.page_digests, request.num_registered, end)
        request.num_registered = end

    def seat_again(self, request: Request) -> None:
        """Has the device forget what it drew for a running request and the host did not take."""
        if request.slot is not None:
            self._seat(request, request.slot)

    def _room(self, request: Request) -> int:
        """Tokens to reserve pages for: the worst case, or what is known and the next one."""
        if self.ask.admission == "reserve":
            return request.max_cached_tokens
        return min(request.max_cached_tokens, request.num_tokens + 1)

    def _start(self, request: Request, slot: int, spare: int) -> bool:
        prefix = self._lookup(request)
        shared = prefix.groups if prefix else None
        if not self.pages.open(slot, self._room(request), shared, spare=spare):
            return False
        request.prefill_end = request.num_tokens
        cached = prefix.num_tokens if prefix else 0
        request.prefill_start = request.num_computed = request.num_scheduled = cached
        request.num_registered = cached // self.pages.geometry.page_tokens
        if not request.num_preemptions:
            request.num_cached_tokens = cached
            if self._reads_cache(request):
                self.num_queries += request.num_tokens
                self.num_hits += cached
        if needs_seat(request.params):
            self._seat(request, slot)
        return True

    def _reads_cache(self, request: Request) -> bool:
        # The log-probabilities of a prompt come from computing it.
        return (
            self.ask.enable_prefix_caching
            and request.options.use_prefix_cache
            and request.num_prompt_logprobs is None
        )

    def _lookup(self, request: Request) -> CachedPrefix | None:
        if not self._reads_cache(request):
            return None
        geometry = self.pages.geometry
        ids = request.known_ids(0, request.num_tokens)
        extend_digests(request.page_digests, ids, geometry.page_tokens)
        # The last token is always computed: its row draws the next one.
        return cached_prefix(self.pages.pools, geometry, request.page_digests, len(ids) - 1)

    def _fork(self, request: Request, slot: int, spare: int) -> bool:
        """Starts a completion from the pages of its sibling, which computed the same prompt.

        Whole pages are shared; the one that the prompt ends in is copied, since both write on.
        The last prompt token goes in anew, as a decode step, and draws this completion's first.
        """
        leader, position = request.leader, len(request.prompt_ids) - 1
        if request.num_preemptions or leader is None or leader.slot is None or not position:
            return False
        if leader.num_scheduled <= position:
            return False  # it was preempted and computes its prompt again
        if leader.num_scheduled == leader.prefill_start:
            return False  # the step to come may compute what it found; a copy is made before it
        held = self.pages.held(leader.slot)
        size, whole = self.pages.geometry.page_tokens, position // self.pages.geometry.page_tokens
        windows = self.pages.geometry.group_windows
        firsts = [first_column(window, position, size) for window in windows]
        if any(part.first > first for part, first in zip(held, firsts, strict=True)):
            return False  # the sibling's window has moved on
        shared = [
            SharedPages(first=first, pages=part.pages[first - part.first : whole - part.first])
            for part, first in zip(held, firsts, strict=True)
        ]
        if not self.pages.open(slot, self._room(request), shared, spare=spare):
            return False
        if position % size:
            self._copy(slot, held, whole, position)
        request.prefill_end = request.num_computed = request.num_scheduled = position
        request.num_registered = whole
        request.num_cached_tokens = position
        self._seat(request, slot)
        return True

    def _copy(self, slot: int, held: tuple[SharedPages, ...], column: int, position: int) -> None:
        extended = self.pages.extend(slot, position, position + 1)
        assert extended, "the page of the next token was promised"
        own = self.pages.held(slot)
        self.chores.append(
            CopyPlan(
                sources=tuple((part.pages[column - part.first],) for part in held),
                targets=tuple((part.pages[column - part.first],) for part in own),
            )
        )

    def _swap_in(self, request: Request, slot: int, spare: int) -> bool:
        assert request.swapped is not None
        if not self.pages.open(slot, self._room(request), spare=spare):
            return False
        pages = self.pages.fill(slot, request.swapped)
        self.chores.append(SwapPlan(key=request.order, is_out=False, pages=pages))
        request.swapped, request.num_registered = None, 0
        self._seat(request, slot)
        return True

    def _seat(self, request: Request, slot: int) -> None:
        self.chores.append(
            seat_plan(
                slot,
                params=request.params,
                end_ids=request.end_ids,
                bad_word_ids=request.bad_word_ids,
                prompt_ids=request.prompt_ids,
                output_ids=request.output_ids,
                vocab_size=self.vocab_size,
            )
        )
