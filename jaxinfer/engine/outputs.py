"""HOST. The records that a user gets back."""

from dataclasses import dataclass

from jaxinfer.scheduler.request import FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprob:
    """A token's raw log-probability; rank 1 is the likeliest, None lies beyond those reported."""

    logprob: float
    rank: int | None
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
    of the longest completion, None for a single token. None where it never came so far.
    """

    time_to_first_token_s: float | None
    time_per_output_token_s: float | None
    e2e_latency_s: float | None
    queue_time_s: float | None
    num_prompt_tokens: int
    num_generation_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """A prompt's completions, or the error that took their place.

    prompt: None where token ids were given. num_cached_tokens: prompt tokens that a cache held.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    num_cached_tokens: int = 0
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
