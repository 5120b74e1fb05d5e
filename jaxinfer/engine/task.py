"""HOST. One prompt under way: its n requests, their text, and the output made of them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.engine.outputs import (
    CompletionOutput,
    Logprob,
    RequestMetrics,
    RequestOutput,
    ScoreOutput,
    StreamDelta,
)
from jaxinfer.scheduler.request import Request, TokenLogprobs
from jaxinfer.text.detokenize import IncrementalDetokenizer
from jaxinfer.text.tokenizer import Tokenizer


@dataclass(slots=True, kw_only=True)
class Completion:
    """A request of the scheduler and the text of its tokens (no detokenizer: no text wanted)."""

    request: Request
    detokenizer: IncrementalDetokenizer | None
    num_shown: int = 0  # tokens already in a delta

    def advance(self) -> str:
        """Takes in the last token: new text; a stop string sets the request's finish reason."""
        request = self.request
        if self.detokenizer is None:
            return ""
        if request.finish_reason == "error" or not request.output_ids:
            return self.flush()
        text = ""
        ended_by_token = request.finish_reason == "stop"
        if not ended_by_token or request.params.include_stop_str_in_output:
            delta = self.detokenizer.push(
                request.output_ids[-1],
                check_stop=len(request.output_ids) > request.params.min_tokens,
            )
            text = delta.text
            if delta.stopped and not ended_by_token:
                request.finish_reason, request.stop_reason = "stop", delta.stop_reason
        return text + self.flush() if request.is_finished else text

    def flush(self) -> str:
        """What was held back for a stop string that will not come any more."""
        return self.detokenizer.finish().text if self.detokenizer else ""


@dataclass(slots=True, kw_only=True)
class Task:
    """A prompt and its completions, or the error that refused it."""

    request_id: str
    prompt: str | None
    prompt_ids: list[int]
    params: SamplingParams
    arrival_s: float
    seed: int = 0
    completions: list[Completion] = field(default_factory=list)
    error: str | None = None

    @property
    def is_finished(self) -> bool:
        """True once every completion has its finish reason."""
        return all(completion.request.is_finished for completion in self.completions)

    def delta(self, completion: Completion, text: str) -> StreamDelta:
        """What is new in a completion since its last delta."""
        request = completion.request
        new = request.output_ids[completion.num_shown :]
        completion.num_shown = len(request.output_ids)
        return StreamDelta(
            request_id=self.request_id,
            index=request.sample_index,
            text=text,
            token_ids=new,
            finish_reason=request.finish_reason,
            error=request.error,
        )

    def output(self, tokenizer: Tokenizer | None) -> RequestOutput:
        """The output as it stands."""
        outputs = [_completion_output(c, tokenizer) for c in self.completions]
        if self.error is not None:
            outputs = [_refused_output(self.seed)]
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_ids,
            outputs=outputs,
            finished=self.is_finished,
            metrics=_metrics(self),
            prompt_logprobs=self._prompt_logprobs(tokenizer),
            num_cached_tokens=self.num_cached_tokens,
            error=self._first_error(),
        )

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that the prefix cache held; further completions share the first's pages."""
        return self.completions[0].request.num_cached_tokens if self.completions else 0

    def score_output(self) -> ScoreOutput:
        """What the prompt's tokens scored, once its request (with prompt_logprobs) has ended."""
        logprobs = [entry.logprob for entry in self._scored()]
        error = self._first_error()
        if error is None and len(logprobs) != len(self.prompt_ids) - 1:
            reasons = ", ".join(str(one.request.finish_reason) for one in self.completions)
            error = (
                f"the request ended ({reasons}) with {len(logprobs)} of "
                f"{len(self.prompt_ids) - 1} tokens scored; score the prompt again"
            )
        return ScoreOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_ids,
            token_logprobs=[] if error is not None else [None, *logprobs],
            cumulative_logprob=None if error is not None else float(sum(logprobs)),
            error=error,
        )

    def _first_error(self) -> str | None:
        errors = (completion.request.error for completion in self.completions)
        return self.error or next((error for error in errors if error), None)

    def _scored(self) -> list[TokenLogprobs]:
        """One entry a prompt token from the second on; the first completion carries them."""
        return (self.completions[0].request.prompt_logprobs or []) if self.completions else []

    def _prompt_logprobs(
        self, tokenizer: Tokenizer | None
    ) -> list[dict[int, Logprob] | None] | None:
        if not self.completions or self.completions[0].request.num_prompt_logprobs is None:
            return None
        return [None, *(_logprob_entry(entry, tokenizer) for entry in self._scored())]


def _refused_output(seed: int) -> CompletionOutput:
    return CompletionOutput(
        index=0,
        text="",
        token_ids=[],
        cumulative_logprob=None,
        logprobs=None,
        finish_reason="error",
        stop_reason=None,
        seed=seed,
    )


def _completion_output(completion: Completion, tokenizer: Tokenizer | None) -> CompletionOutput:
    request, logprobs, total = completion.request, None, None
    if request.params.logprobs is not None:
        logprobs = [_logprob_entry(entry, tokenizer) for entry in request.logprobs]
        total = sum(entry.logprob for entry in request.logprobs)
    return CompletionOutput(
        index=request.sample_index,
        text=completion.detokenizer.text if completion.detokenizer else "",
        token_ids=list(request.output_ids),
        cumulative_logprob=total,
        logprobs=logprobs,
        finish_reason=request.finish_reason,
        stop_reason=request.stop_reason,
        seed=request.seed,
    )


def _logprob_entry(entry: TokenLogprobs, tokenizer: Tokenizer | None) -> dict[int, Logprob]:
    def text(token: int) -> str:
        # Not `decode`: that drops the leading space of a text, which a token in its midst has.
        return tokenizer.token_bytes(token).decode("utf-8", "replace") if tokenizer else ""

    listed = {
        token: Logprob(logprob=value, rank=rank, decoded_token=text(token))
        for rank, (token, value) in enumerate(entry.best, 1)
    }
    if entry.token_id not in listed:
        listed[entry.token_id] = Logprob(
            logprob=entry.logprob, rank=entry.rank, decoded_token=text(entry.token_id)
        )
    return listed


def _metrics(task: Task) -> RequestMetrics:
    requests = [completion.request for completion in task.completions]
    first = _earliest(request.first_token_s for request in requests)
    admitted = _earliest(request.admitted_s for request in requests)
    ended = [r.finished_s for r in requests if r.finished_s is not None]
    end = max(ended) if requests and len(ended) == len(requests) else None
    longest = max((len(request.output_ids) for request in requests), default=0)
    decoding, per_token = _between(first, end), None
    if decoding is not None and longest > 1:
        per_token = decoding / (longest - 1)
    return RequestMetrics(
        time_to_first_token_s=_between(task.arrival_s, first),
        time_per_output_token_s=per_token,
        e2e_latency_s=_between(task.arrival_s, end),
        queue_time_s=_between(task.arrival_s, admitted),
        prefill_time_s=_between(admitted, first),
        decode_time_s=decoding,
        num_prompt_tokens=len(task.prompt_ids),
        num_generation_tokens=sum(len(request.output_ids) for request in requests),
        num_cached_tokens=task.num_cached_tokens,
        num_preemptions=sum(request.num_preemptions for request in requests),
        num_draft_tokens=sum(one.draft_counts.num_draft_tokens for one in requests),
        num_accepted_draft_tokens=sum(one.draft_counts.num_accepted_tokens for one in requests),
        num_drafts=sum(one.draft_counts.num_drafts for one in requests),
        accepted_per_position=_per_position(requests),
    )


def _per_position(requests: Sequence[Request]) -> tuple[int, ...]:
    every = sum((one.draft_counts.per_position for one in requests), Counter[int]())
    return tuple(every[place] for place in range(max(every, default=-1) + 1))


def _earliest(times) -> float | None:
    return min((time for time in times if time is not None), default=None)


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start
