"""HOST. When to draft, and how much: by the number of running requests, and by what was accepted.

A step that verifies drafts computes more rows than a decode step. While few requests run, reading
the weights dominates and the rows are nearly free; with many they cost what they are. And a request
whose drafts fail pays for nothing, so it drafts only now and then, to see whether that has changed.
"""

from abc import ABC, abstractmethod

from jaxinfer.config.speculative_config import SpeculativeConfig
from jaxinfer.scheduler.drafting import DraftCounts
from jaxinfer.scheduler.request import Request
from jaxinfer.speculation.ngram import ngram_drafts

# Accepted tokens a verify step, less what drafting cost: below, it costs more than it gives.
GAIN_THAT_PAYS = 0.7
PROBE_EVERY = 24  # steps of a request between drafts that are only tried
FIRST_TRIES = 4  # drafts of a request by a model before its average says anything
NEW_SHARE = 0.25  # weight of the newest step in the average


class Control(ABC):
    """What the drafters share: when they draft, and what they learn from it.

    Args:
        config: the settings.
        max_rows: rows of the widest verify program.
        cost: of drafting a token, as a share of a decode step.
    """

    on_device: bool

    def __init__(self, config: SpeculativeConfig, max_rows: int, cost: float = 0.0) -> None:
        self.config = config
        self.cost = cost
        self.counts = DraftCounts()
        table = config.drafting_table
        self._table = tuple((min(running, max_rows), tokens) for running, tokens in table)

    def num_tokens(self, num_running: int) -> int:
        """How many tokens to draft for each request where so many share the step; 0 is off."""
        return next((tokens for most, tokens in self._table if num_running <= most), 0)

    def is_due(self, request: Request) -> bool:
        """True if the request should draft in the next step."""
        if not self.config.adaptive or request.draft_gain >= GAIN_THAT_PAYS:
            return True
        return request.num_undrafted >= PROBE_EVERY

    @abstractmethod
    def drafts(self, request: Request, most: int) -> tuple[int, ...]:
        """Up to `most` tokens to be verified after the request's last one."""

    def see(self, request: Request, num_drafted: int, num_accepted: int) -> None:
        """Notes how many of a request's drafts were accepted."""
        self.counts.see(num_drafted, num_accepted)
        request.draft_counts.see(num_drafted, num_accepted)
        self._learn(request, num_accepted - self.cost * num_drafted)

    def _learn(self, request: Request, gain: float) -> None:
        request.draft_gain += NEW_SHARE * (gain - request.draft_gain)


class NgramDrafter(Control):
    """Drafts by lookup, here on the host."""

    on_device = False

    def drafts(self, request: Request, most: int) -> tuple[int, ...]:
        if not self.is_due(request):
            return ()
        found = ngram_drafts(
            request.known_ids(0, request.num_tokens),
            longest=self.config.prompt_lookup_max,
            shortest=self.config.prompt_lookup_min,
            most=most,
        )
        if not found:
            # As if a draft had failed: whoever has nothing to look up shall not keep the device
            # waiting for the host at every step.
            self._learn(request, 0)
            request.num_undrafted = 0
        return found


class ModelDrafter(Control):
    """Has a model draft, on the device.

    Args:
        max_position: positions that the draft model knows; what lies beyond is not drafted.
        cost: of drafting a token, as a share of a decode step; bytes of weights tell it well.
    """

    on_device = True

    def __init__(
        self, config: SpeculativeConfig, max_rows: int, *, max_position: int, cost: float
    ) -> None:
        super().__init__(config, max_rows, cost)
        self._max_position = max_position

    @property
    def can_pay(self) -> bool:
        """False where a round takes longer than its tokens would, even if every draft stands."""
        most = max((tokens for _, tokens in self._table), default=0)
        return most * (1 - self.cost) >= GAIN_THAT_PAYS

    def is_due(self, request: Request) -> bool:
        """As of any drafter; the first drafts of a request are only tried, to see how it does.

        Never past the draft model's positions: others may then be launched ahead.
        """
        if request.num_scheduled >= self._max_position:
            return False
        if not self.config.adaptive or not self.can_pay:
            return not self.config.adaptive
        return request.draft_counts.num_drafts < FIRST_TRIES or super().is_due(request)

    def drafts(self, request: Request, most: int) -> tuple[int, ...]:
        """Zeros, as many as tokens may be drafted: what they will be is the device's knowledge."""
        # The last token goes in at num_scheduled, the last draft but one most - 1 places later.
        room = self._max_position - request.num_scheduled
        return (0,) * max(0, min(most, room)) if self.is_due(request) else ()
