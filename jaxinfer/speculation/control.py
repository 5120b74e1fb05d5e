"""HOST. When to draft, and how much: by the number of running requests, and by what was accepted.

A step that verifies drafts computes more rows than a decode step. While few requests run, reading
the weights dominates and the rows are nearly free; with many they cost what they are. And a request
whose drafts fail pays for nothing, so it drafts only now and then, to see whether that has changed.
"""

from jaxinfer.config.speculative_config import SpeculativeConfig
from jaxinfer.scheduler.drafting import DraftCounts
from jaxinfer.scheduler.request import Request
from jaxinfer.speculation.ngram import ngram_drafts

ACCEPTED_THAT_PAY = (
    0.7  # accepted tokens a verify step, on average: below, it costs more than it gives
)
PROBE_EVERY = 24  # steps of a request between drafts that are only tried
NEW_SHARE = 0.25  # weight of the newest step in the average
DEFAULT_RUNNING = 4  # running requests up to which drafting pays where nothing was set


class NgramDrafter:
    """Drafts for the scheduler, and learns what became of them.

    Args:
        config: the settings.
        max_rows: rows of the widest verify program.
    """

    def __init__(self, config: SpeculativeConfig, max_rows: int) -> None:
        self.config = config
        self.counts = DraftCounts()
        table = config.tokens_by_running
        if table is None:
            table = ((DEFAULT_RUNNING, config.num_speculative_tokens),)
        self._table = tuple((min(running, max_rows), tokens) for running, tokens in table)

    def num_tokens(self, num_running: int) -> int:
        """How many tokens to draft for each request while so many run; 0 is off."""
        return next((tokens for most, tokens in self._table if num_running <= most), 0)

    def is_due(self, request: Request) -> bool:
        """True if the request should draft in the next step."""
        if not self.config.adaptive or request.drafts_accepted >= ACCEPTED_THAT_PAY:
            return True
        return request.num_undrafted >= PROBE_EVERY

    def drafts(self, request: Request, most: int) -> tuple[int, ...]:
        """Up to `most` tokens to be verified after the request's last one."""
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
            request.drafts_accepted -= NEW_SHARE * request.drafts_accepted
        return found

    def see(self, request: Request, num_drafted: int, num_accepted: int) -> None:
        """Notes how many of a request's drafts were accepted."""
        self.counts.see(num_drafted, num_accepted)
        request.draft_counts.see(num_drafted, num_accepted)
        request.drafts_accepted += NEW_SHARE * (num_accepted - request.drafts_accepted)
