"""HOST. One request's state: from arrival to its last token.

    waiting ──admitted──▶ prefill ──prompt done──▶ decode ──stop──▶ finished
       ▲                     │                       │
       └────── preempted ────┴───────────────────────┘     aborted, refused: finished from anywhere

Token ranges while steps are in flight (launched, not yet read):

    | computed: KV in pages, read back | scheduled: launched | known, not scheduled |
    0                        num_computed          num_scheduled              num_tokens
                                     tokens drawn by unread steps (num_drawing) come after these

Does not know pages, steps or text.
"""

from dataclasses import dataclass, field
from typing import Literal

from jaxinfer.config.request_options import RequestOptions
from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.scheduler.drafting import DraftCounts
from jaxinfer.scheduler.prefix_index import SharedPages

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Log-probabilities where one token stands: the k best and its own; rank 1 is the likeliest."""

    token_id: int
    logprob: float
    rank: int
    best: tuple[tuple[int, float], ...]


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """One sequence (of n completions, one each).

    prompt_ids: checked against the vocabulary and max_model_len by the engine.
    max_new_tokens: already bounded by max_model_len; 0 for a request that only scores its prompt.
    end_ids: tokens that end it (EOS unless ignored, and stop ids).
    bad_word_ids: words that must not be drawn, in each spelling.
    num_prompt_logprobs: best tokens to report at each prompt token, None for no report.
    siblings: the other completions of its prompt, queued once its prompt is in pages.
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
    options: RequestOptions = RequestOptions()
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    num_prompt_logprobs: int | None = None
    siblings: list["Request"] = field(default_factory=list)
    leader: "Request | None" = None

    slot: int | None = None
    num_computed: int = 0
    num_scheduled: int = 0
    num_drawing: int = 0
    num_in_flight: int = 0  # rows in launched steps that were not read
    prefill_start: int = 0  # tokens that were cached on admission, or that the same step computes
    prefill_end: int = 0  # tokens that prefill brings into pages; set on admission
    swapped: tuple[SharedPages, ...] | None = None  # where its pages were, while the host has them
    num_registered: int = 0  # leading pages whose content the prefix cache knows
    page_digests: list[bytes] = field(default_factory=list)
    last_turn: int = 0  # the step that last had a row of it
    draft_gain: float = 1.0  # tokens of a step that drafted, less its cost; moving average
    num_undrafted: int = 0  # decode steps since it last drafted, or had nothing to draft
    may_not_draft: bool = False  # in its next step
    draft_counts: DraftCounts = field(default_factory=DraftCounts)

    output_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] | None = None  # of the prompt's second token and on
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    admitted_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    finished_s: float | None = None

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens that the host knows."""
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def max_cached_tokens(self) -> int:
        """Tokens that ever need keys and values: the last one drawn does not."""
        return len(self.prompt_ids) + max(0, self.max_new_tokens - 1)

    @property
    def is_prefilled(self) -> bool:
        """True once launched steps bring every token of its prefill into pages."""
        return self.num_scheduled >= self.prefill_end

    @property
    def is_finished(self) -> bool:
        """True once a finish reason is set."""
        return self.finish_reason is not None

    @property
    def num_to_draw(self) -> int:
        """Tokens that no launched step has drawn yet, at most."""
        return self.max_new_tokens - len(self.output_ids) - self.num_drawing

    def known_ids(self, start: int, end: int) -> list[int]:
        """Tokens [start, end) of prompt and output."""
        length = len(self.prompt_ids)
        return (
            self.prompt_ids[start:end]
            + self.output_ids[max(0, start - length) : max(0, end - length)]
        )

    def accept_token(self, token_id: int) -> None:
        """Appends a drawn token and sets the finish reason if it is the last."""
        self.output_ids.append(token_id)
        if token_id in self.end_ids and len(self.output_ids) > self.params.min_tokens:
            self.finish_reason = "stop"
            self.stop_reason = token_id if token_id in self.stop_ids else None
        elif len(self.output_ids) >= self.max_new_tokens:
            self.finish_reason = "length"
