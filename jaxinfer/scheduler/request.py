"""HOST. One request's state: from arrival to its last token.

    waiting ──admitted──▶ prefill ──prompt done──▶ decode ──stop──▶ finished
       └───────────────────── aborted or refused ─────────────────────▲

Does not know pages, steps or text.
"""

from dataclasses import dataclass, field
from typing import Literal

from jaxinfer.config.sampling_params import SamplingParams

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Raw log-probabilities where one token was drawn: the k best and the drawn one."""

    token_id: int
    logprob: float
    best: tuple[tuple[int, float], ...]


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """One sequence (of n completions, one each).

    prompt_ids: checked against the vocabulary and max_model_len by the engine.
    max_new_tokens: already bounded by max_model_len.
    end_ids: tokens that end it (EOS unless ignored, and stop ids).
    seed: the one used, given or drawn.
    """

    request_id: str
    prompt_ids: list[int]
    params: SamplingParams
    max_new_tokens: int
    end_ids: frozenset[int]
    stop_ids: frozenset[int]
    seed: int
    sample_index: int = 0
    order: int = 0  # of arrival
    arrival_s: float = 0.0

    slot: int | None = None
    num_computed: int = 0  # tokens whose keys and values are in pages
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    admitted_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens so far."""
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def max_cached_tokens(self) -> int:
        """Tokens that ever need keys and values: the last one drawn does not."""
        return len(self.prompt_ids) + self.max_new_tokens - 1

    @property
    def is_prefilled(self) -> bool:
        """True once every prompt token is in pages."""
        return self.num_computed >= len(self.prompt_ids)

    @property
    def is_finished(self) -> bool:
        """True once a finish reason is set."""
        return self.finish_reason is not None

    def accept_token(self, token_id: int) -> None:
        """Appends a drawn token and sets the finish reason if it is the last."""
        self.output_ids.append(token_id)
        if token_id in self.end_ids:
            self.finish_reason = "stop"
            self.stop_reason = token_id if token_id in self.stop_ids else None
        elif len(self.output_ids) >= self.max_new_tokens:
            self.finish_reason = "length"
