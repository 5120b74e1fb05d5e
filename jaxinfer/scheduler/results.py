"""HOST. What a step's result means for the requests that had rows in it.

Knows requests and result records; pages and slots are the scheduler's.
"""

from jaxinfer.config.step_plan import StepResult
from jaxinfer.scheduler.request import Request, TokenLogprobs


def accept(request: Request, result: StepResult, row: int) -> None:
    """Gives a request the token of its row, or its error."""
    if not result.finite[row]:
        fail(request, f"after {request.num_tokens} tokens")
        return
    token = int(result.tokens[row])
    if request.params.logprobs is not None:
        request.logprobs.append(token_logprobs(result, row, request.params.logprobs))
    request.accept_token(token)


def accept_prompt_logprobs(request: Request, start: int, scores: StepResult) -> None:
    """Appends the log-probabilities of the prompt tokens from `start` + 1 on, a row each.

    A prompt that is computed again (after a preemption) brings those that are there already.
    """
    entries = request.prompt_logprobs
    assert entries is not None and request.num_prompt_logprobs is not None
    for row in range(len(entries) - start, scores.tokens.size):
        if not scores.finite[row]:
            fail(request, f"after {start + row + 1} prompt tokens")
            return
        entries.append(token_logprobs(scores, row, request.num_prompt_logprobs))


def fail(request: Request, where: str) -> None:
    """Ends a request whose logits are no numbers."""
    request.finish_reason = "error"
    request.error = (
        f"NaN or Inf in the logits {where}; "
        "the checkpoint's weights or the dtype are at fault (try dtype='float32')"
    )


def token_logprobs(result: StepResult, row: int, count: int) -> TokenLogprobs:
    """The entry of one row with its `count` best tokens."""
    ids, values = result.best_ids[row, :count].tolist(), result.best_logprobs[row, :count].tolist()
    best: dict[int, float] = {}
    for candidate, value in zip(ids, values, strict=True):
        best.setdefault(candidate, value)  # a vocabulary smaller than the row repeats id 0 at -inf
    return TokenLogprobs(
        token_id=int(result.tokens[row]),
        logprob=float(result.logprobs[row]),
        rank=int(result.ranks[row]),
        best=tuple(best.items()),
    )
