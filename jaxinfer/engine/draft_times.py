"""HOST. How long drafting and verifying took, and what was gained by it.

A round is what makes the tokens of one verify step: drafting, on the host or the device, and that
step. Knows times that it is told; reads no clock.
"""

from collections import defaultdict, deque
from dataclasses import dataclass, field
from statistics import median

_NUM_KEPT = 32  # decode steps of a width; a median, since the first ones are slow
_NUM_NEEDED = 4  # of them before anything is compared


def _recent() -> deque[float]:
    return deque(maxlen=_NUM_KEPT)


@dataclass(slots=True)
class DraftTimes:
    """Running totals.

    instead_seconds: what the tokens of all rounds would have taken without drafts: for each round
    its tokens a row times a decode step of its rows, as long as those took of late.
    """

    num_rounds: int = 0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    instead_seconds: float = 0.0
    compared_seconds: float = 0.0  # of rounds that there were decode steps to compare with
    _plain: defaultdict[int, deque[float]] = field(default_factory=lambda: defaultdict(_recent))

    def see_decode(self, width: int, seconds: float) -> None:
        """Notes a step without drafts; width: rows of its program."""
        self._plain[width].append(seconds)

    def see_round(
        self, width: int, *, draft_s: float, verify_s: float, tokens_a_row: float
    ) -> None:
        """Notes a round; width: of the decode program that would have served its rows;
        tokens_a_row: that it gave each of its requests, on average."""
        self.num_rounds += 1
        self.draft_seconds += draft_s
        self.verify_seconds += verify_s
        plain = self._plain[width]
        if len(plain) >= _NUM_NEEDED:
            self.instead_seconds += tokens_a_row * median(plain)
            self.compared_seconds += draft_s + verify_s

    def numbers(self) -> dict[str, float]:
        """By the names of the metrics; a gain of 1.0 is none, 0.0 says that nothing is known."""
        compared = self.compared_seconds
        return {
            "spec_decode_num_rounds": float(self.num_rounds),
            "spec_decode_draft_seconds": self.draft_seconds,
            "spec_decode_verify_seconds": self.verify_seconds,
            "spec_decode_instead_seconds": self.instead_seconds,
            "spec_decode_compared_seconds": compared,
            "spec_decode_estimated_gain": self.instead_seconds / compared if compared else 0.0,
        }
