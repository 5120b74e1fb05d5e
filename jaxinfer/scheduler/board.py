"""HOST. What the parts of the scheduler share: who has which slot, who waits, and the pages.

Holds and answers; decides nothing.
"""

from dataclasses import dataclass

from jaxinfer.config.engine_config import EngineConfig
from jaxinfer.config.geometry import Geometry
from jaxinfer.scheduler.admission import Admission
from jaxinfer.scheduler.page_tables import PageTables
from jaxinfer.scheduler.request import Request
from jaxinfer.scheduler.sampling_rows import SlotSampling
from jaxinfer.scheduler.waiting_queue import Rank, WaitingQueue, rank


@dataclass(slots=True, kw_only=True)
class Board:
    """Slots, queue and pages of one scheduler."""

    geometry: Geometry
    ask: EngineConfig
    slots: list[Request | None]
    waiting: WaitingQueue
    pages: PageTables
    admission: Admission
    sampling: SlotSampling

    @property
    def running(self) -> list[Request]:
        """Requests that have a slot and go on, by slot."""
        return [one for one in self.slots if one is not None and not one.is_finished]

    def rank(self, request: Request) -> Rank:
        """Sort key: the lowest is served first."""
        return rank(request, by_priority=self.ask.scheduling_policy == "priority")


def init_board(geometry: Geometry, ask: EngineConfig, vocab_size: int) -> Board:
    """Empty slots, nobody waiting, every page free."""
    pages = PageTables(geometry)
    return Board(
        geometry=geometry,
        ask=ask,
        slots=[None] * geometry.num_slots,
        waiting=WaitingQueue(by_priority=ask.scheduling_policy == "priority"),
        pages=pages,
        admission=Admission(pages=pages, ask=ask, vocab_size=vocab_size),
        sampling=SlotSampling(geometry.num_slots),
    )
