"""HOST. What the scheduler knows of speculation: somebody drafts, and learns what became of it.

The drafters themselves are in `speculation/`, above the scheduler.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from jaxinfer.scheduler.request import Request


@dataclass(slots=True)
class DraftCounts:
    """What was drafted and accepted; `per_position[i]` counts drafts accepted at place i.

    num_drafts counts a request's part in a step once; accepted tokens that came after the request's
    end count as not accepted.
    """

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    per_position: Counter[int] = field(default_factory=Counter)

    def see(self, num_drafted: int, num_accepted: int) -> None:
        """Notes one request's part in a step."""
        self.num_drafts += 1
        self.num_draft_tokens += num_drafted
        self.num_accepted_tokens += num_accepted
        self.per_position.update(range(num_accepted))

    @property
    def acceptance_rate(self) -> float:
        """The share of drafted tokens that was accepted; 0 of none."""
        return self.num_accepted_tokens / max(1, self.num_draft_tokens)

    @property
    def mean_length(self) -> float:
        """Tokens that a draft gave on average, with the one that the model adds; 0 of none."""
        return 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else 0.0

    def numbers(self, num_positions: int = 0) -> dict[str, float]:
        """By the names of the metrics; positions count from 0.

        The rate is of drafted tokens; the length is what a draft gives on average, the token that
        the model adds included.
        """
        numbers = {
            "spec_decode_num_drafts": float(self.num_drafts),
            "spec_decode_num_draft_tokens": float(self.num_draft_tokens),
            "spec_decode_num_accepted_tokens": float(self.num_accepted_tokens),
            "spec_decode_acceptance_rate": self.acceptance_rate,
            "spec_decode_mean_acceptance_length": self.mean_length,
        }
        for position in range(num_positions):
            name = f'spec_decode_num_accepted_tokens_per_pos{{position="{position}"}}'
            numbers[name] = float(self.per_position[position])
        return numbers


class Drafter(Protocol):
    """Drafts tokens from what the host knows of a request, or has the device draft them.

    on_device: the tokens are drafted by steps before the one that verifies, and never known here;
        so nobody has to wait until the last token is.
    """

    counts: DraftCounts
    on_device: bool

    def num_tokens(self, num_running: int) -> int:
        """How many tokens to draft for each request where so many share the step; 0 is off."""
        ...

    def is_due(self, request: Request) -> bool:
        """True if the request should draft in the next step."""
        ...

    def drafts(self, request: Request, most: int) -> tuple[int, ...]:
        """Up to `most` tokens to be verified after the request's last one; zeros in place of those
        that the device drafts."""
        ...

    def see(self, request: Request, num_drafted: int, num_accepted: int) -> None:
        """Notes how many of a request's drafts were accepted."""
        ...
