"""What a row's result does to its request: a token, log-probabilities, or an error."""

import numpy as np

from jaxinfer.config.step_plan import StepResult
from jaxinfer.scheduler.results import accept, accept_prompt_logprobs, token_logprobs
from tests.scheduler.requests import traced


def result(tokens: list[int], *, finite: bool = True, vocab: int = 20) -> StepResult:
    """Every row has `vocab` best tokens, the highest id first; the rest is id 0 at -inf."""
    rows = len(tokens)
    ids, values = np.zeros((rows, 20), np.int32), np.full((rows, 20), -np.inf, np.float32)
    ids[:, :vocab], values[:, :vocab] = np.arange(vocab)[::-1], -np.arange(vocab)
    return StepResult(
        tokens=np.array(tokens, np.int32),
        finite=np.full(rows, finite),
        logprobs=np.arange(rows, dtype=np.float32) - 9,
        ranks=np.arange(rows, dtype=np.int32) + 3,
        best_ids=ids,
        best_logprobs=values,
    )


def test_a_token_and_no_log_probabilities_unless_asked() -> None:
    one = traced(1, 4)
    accept(one, result([3, 7]), 1)
    assert one.output_ids == [7] and type(one.output_ids[0]) is int and one.logprobs == []


def test_log_probabilities_of_the_best_and_its_own() -> None:
    one = traced(1, 4, logprobs=2)
    accept(one, result([3, 7]), 1)
    (entry,) = one.logprobs
    assert (entry.token_id, entry.logprob, entry.rank) == (7, -8.0, 4)
    assert entry.best == ((19, 0.0), (18, -1.0))


def test_its_own_alone() -> None:
    """BB-26 (vllm#9453): logprobs=0 has one entry."""
    assert token_logprobs(result([3]), 0, 0).best == ()


def test_a_vocabulary_smaller_than_the_row() -> None:
    """The missing places hold id 0 at -inf: they must not hide token 0's own entry."""
    entry = token_logprobs(result([3], vocab=4), 0, 20)
    assert entry.best == ((3, 0.0), (2, -1.0), (1, -2.0), (0, -3.0))


def test_no_numbers() -> None:
    """Promise 11: the row ends with "error" that names NaN."""
    one = traced(1, 4, logprobs=2)
    accept(one, result([3, 7], finite=False), 0)
    assert one.finish_reason == "error" and one.output_ids == [] and one.logprobs == []
    assert one.error is not None and "NaN" in one.error and "4 tokens" in one.error


def scored(**changes):
    one = traced(1, 6, num_prompt_logprobs=1, **changes)
    one.prompt_logprobs = []
    return one


def test_prompt_log_probabilities_come_in_chunks() -> None:
    """BB-32 (vllm#6223): one entry a token from the second on, none twice."""
    one = scored()
    accept_prompt_logprobs(one, 0, result([101, 102, 103, 104]))
    accept_prompt_logprobs(one, 4, result([105]))
    assert one.prompt_logprobs is not None
    assert [entry.token_id for entry in one.prompt_logprobs] == [101, 102, 103, 104, 105]
    assert [entry.best for entry in one.prompt_logprobs] == [((19, 0.0),)] * 5


def test_a_prompt_computed_again_keeps_what_is_there() -> None:
    one = scored()
    accept_prompt_logprobs(one, 0, result([101, 102, 103, 104]))
    before = list(one.prompt_logprobs or [])
    accept_prompt_logprobs(one, 0, result([101, 102, 103, 104]))
    assert one.prompt_logprobs == before
    accept_prompt_logprobs(one, 0, result([101, 102, 103, 104, 105]))
    assert [entry.token_id for entry in one.prompt_logprobs or []] == [101, 102, 103, 104, 105]


def test_a_prompt_without_numbers_ends_where_they_end() -> None:
    one, scores = scored(), result([101, 102, 103])
    scores.finite[1] = False
    accept_prompt_logprobs(one, 0, scores)
    assert len(one.prompt_logprobs or []) == 1 and one.finish_reason == "error"
    assert one.error is not None and "after 2 prompt tokens" in one.error
