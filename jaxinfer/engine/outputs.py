"""HOST. The records that a user gets back."""

from dataclasses import dataclass

from jaxinfer.scheduler.request import FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprob:
    """A token's log-probability, -inf where it could not be drawn; rank 1 is the likeliest."""

    logprob: float
    rank: int
    decoded_token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One completion of a prompt.

    logprobs: for each token the k best and the drawn one, by id; None unless asked for.
    cumulative_logprob: the sum over the drawn tokens; None unless logprobs were asked for.
    stop_reason: the stop string or stop id that ended it, None for EOS or another end.
    seed: the one its tokens were drawn with.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """Times of a request in seconds; n completions count as one request.

    time_to_first_token_s: from arrival. time_per_output_token_s: (end to end - TTFT) / (tokens - 1)
    of the longest completion, None for a single token. queue_time_s: arrival to admission.
    prefill_time_s: admission to first token. decode_time_s: from there to the end of the last
    completion. None where it never came so far. num_cached_tokens: as in `RequestOutput`.
    num_drafts: steps that verified drafts of it. accepted_per_position: how often the draft at each
    place stood, up to the last that ever did.
    """

    time_to_first_token_s: float | None
    time_per_output_token_s: float | None
    e2e_latency_s: float | None
    queue_time_s: float | None
    num_prompt_tokens: int
    num_generation_tokens: int
    prefill_time_s: float | None = None
    decode_time_s: float | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    num_drafts: int = 0
    accepted_per_position: tuple[int, ...] = ()

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens that a draft gave on average, with the one that the model adds; 0 of none."""
        return 1 + self.num_accepted_draft_tokens / self.num_drafts if self.num_drafts else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """A prompt's completions, or the error that took their place.

    prompt: None where token ids were given.
    prompt_logprobs: an entry a prompt token, None for the first (nothing precedes it); then by id
        the k best and the prompt's own; fewer where it was aborted before. None unless asked for.
    num_cached_tokens: prompt tokens that a cache held.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    num_cached_tokens: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreOutput:
    """How likely each token of a prompt is after those before it, or the error in its place.

    token_logprobs: as many as prompt_token_ids, None for the first; empty with an error.
    cumulative_logprob: their sum; None with an error.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    token_logprobs: list[float | None]
    cumulative_logprob: float | None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDelta:
    """What one step added to one completion; the texts of all deltas join to its text."""

    request_id: str
    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    error: str | None = None
