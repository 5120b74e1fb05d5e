"""HOST. From what a user asks for to requests: prompts read, parameters checked against the model.

Knows the vocabulary, the tokenizer and the length limit; neither slots nor steps.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jaxinfer.config.request_options import RequestOptions
from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.engine.prompt import read_prompt, text_of
from jaxinfer.engine.task import Completion, Task
from jaxinfer.errors import RequestError
from jaxinfer.scheduler.request import Request
from jaxinfer.scheduler.seating import bad_word_ids
from jaxinfer.text.detokenize import IncrementalDetokenizer
from jaxinfer.text.tokenizer import Tokenizer


class Intake:
    """Makes tasks.

    Args:
        vocab_size: V.
        max_model_len: tokens a request may hold.
        tokenizer: None where the checkpoint has none; prompts are token ids then.
        eos_token_ids: ids that end a request unless it ignores them.
        seed: from which requests without a seed draw theirs.
        max_logprobs: the most that a request may ask for.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        max_model_len: int,
        tokenizer: Tokenizer | None,
        eos_token_ids: Iterable[int],
        seed: int,
        max_logprobs: int,
    ) -> None:
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self.tokenizer = tokenizer
        self.eos_token_ids = frozenset(one for one in eos_token_ids if one < vocab_size)
        self.max_logprobs = max_logprobs
        self._seeds = np.random.default_rng(seed)
        self._num_tasks = 0
        self._num_requests = 0

    def open_task(self, prompt: Any, params: SamplingParams, now_s: float) -> Task:
        """A task without requests yet; `fill` reads the prompt."""
        self._num_tasks += 1
        return Task(
            request_id=str(self._num_tasks - 1),
            prompt=text_of(prompt),
            prompt_ids=[],
            params=params,
            arrival_s=now_s,
            # Drawn before any check: a refused prompt must not change what its neighbours draw.
            seed=int(self._seeds.integers(2**63)) if params.seed is None else params.seed,
        )

    def fill(self, task: Task, prompt: Any, options: RequestOptions, *, scores: bool) -> Request:
        """Reads the prompt and makes the task's requests: the first, with the others as siblings.

        scores: draw nothing, only give the log-probabilities of the prompt.

        Raises:
            RequestError: a prompt or parameters that cannot be served.
        """
        if isinstance(prompt, RequestError):  # a conversation that could not be rendered
            raise prompt
        checked = read_prompt(
            prompt, self.tokenizer, vocab_size=self.vocab_size, max_model_len=self.max_model_len
        )
        task.prompt, task.prompt_ids = checked.text, checked.token_ids
        self._check(task.params)
        words = self._bad_word_ids(task.params)
        room = 0 if scores else max(1, self.max_model_len - len(task.prompt_ids))
        requests = [
            self._request(task, index, options, words, room) for index in range(task.params.n)
        ]
        for sibling in requests[1:]:
            sibling.leader = requests[0]
        requests[0].siblings = requests[1:]
        task.completions = [
            Completion(request=request, detokenizer=self._detokenizer(task)) for request in requests
        ]
        return requests[0]

    def _request(
        self,
        task: Task,
        index: int,
        options: RequestOptions,
        words: tuple[tuple[int, ...], ...],
        room: int,
    ) -> Request:
        params = task.params
        stop_ids = frozenset(params.stop_token_ids)
        scored = params.prompt_logprobs if index == 0 else None
        self._num_requests += 1
        return Request(
            request_id=task.request_id,
            prompt_ids=task.prompt_ids,
            params=params,
            max_new_tokens=min(params.max_tokens or room, room),
            end_ids=stop_ids | (frozenset() if params.ignore_eos else self.eos_token_ids),
            stop_ids=stop_ids,
            seed=task.seed,
            sample_index=index,
            order=self._num_requests,
            arrival_s=task.arrival_s,
            options=options,
            bad_word_ids=words,
            num_prompt_logprobs=scored,
            prompt_logprobs=None if scored is None else [],
        )

    def _detokenizer(self, task: Task) -> IncrementalDetokenizer | None:
        if self.tokenizer is None or not task.params.detokenize:
            return None
        return IncrementalDetokenizer(
            self.tokenizer,
            prompt_ids=task.prompt_ids,
            stop_strings=task.params.stop_strings,
            include_stop_str_in_output=task.params.include_stop_str_in_output,
            skip_special_tokens=task.params.skip_special_tokens,
        )

    def _bad_word_ids(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        if not params.bad_words:
            return ()
        tokenizer = self._need_tokenizer("bad_words", params.bad_words, "allowed_token_ids")
        words = bad_word_ids(
            params.bad_words, lambda text: tokenizer.encode(text, add_special_tokens=False)
        )
        self._check_ids("bad_words", [token for word in words for token in word])
        return words

    def _check(self, params: SamplingParams) -> None:
        self._check_ids("stop_token_ids", params.stop_token_ids)
        self._check_ids("allowed_token_ids", params.allowed_token_ids or ())
        self._check_ids("logit_bias", [token for token, _ in params.bias_entries])
        if params.stop_strings:
            self._need_tokenizer("stop", params.stop_strings, "stop_token_ids")
        for name in ("logprobs", "prompt_logprobs"):
            if (getattr(params, name) or 0) > self.max_logprobs:
                raise RequestError(
                    f"{name}={getattr(params, name)} is more than max_logprobs="
                    f"{self.max_logprobs}; ask for fewer, or raise max_logprobs of the LLM"
                )

    def _check_ids(self, name: str, ids: Sequence[int]) -> None:
        for token in ids:
            if token >= self.vocab_size:
                raise RequestError(
                    f"{name} holds {token}, the vocabulary has {self.vocab_size} tokens; remove it"
                )

    def _need_tokenizer(self, name: str, value: object, instead: str) -> Tokenizer:
        if self.tokenizer is None:
            raise RequestError(
                f"{name}={value!r} needs text and the checkpoint has no tokenizer; use {instead}"
            )
        return self.tokenizer
