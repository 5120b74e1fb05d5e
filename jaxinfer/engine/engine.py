"""JOINT. The loop: schedule, run, update, make text. Holds the parts that `build.py` assembled."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxinfer.config.model_config import ModelConfig
from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.config.step_plan import PrefillPlan
from jaxinfer.engine.metrics import EngineMetrics
from jaxinfer.engine.outputs import StreamDelta
from jaxinfer.engine.prompt import read_prompt
from jaxinfer.engine.task import Completion, Task
from jaxinfer.errors import RequestError
from jaxinfer.runner.runner import Runner
from jaxinfer.scheduler.request import Request
from jaxinfer.scheduler.scheduler import Plan, Scheduler
from jaxinfer.text.detokenize import IncrementalDetokenizer
from jaxinfer.text.tokenizer import Tokenizer


class Engine:
    """Runs tasks through slots. Not safe for use from several threads at once.

    Args:
        config: the model's.
        runner: device state and programs.
        scheduler: slots and pages.
        tokenizer: None where the checkpoint has none; prompts are token ids then.
        eos_token_ids: ids that end a request unless it ignores them.
        seed: from which requests without a seed draw theirs.
    """

    def __init__(
        self,
        *,
        config: ModelConfig,
        runner: Runner,
        scheduler: Scheduler,
        tokenizer: Tokenizer | None,
        eos_token_ids: Sequence[int],
        seed: int,
        metrics: EngineMetrics,
    ) -> None:
        self.config = config
        self.runner = runner
        self.scheduler = scheduler
        self.tokenizer = tokenizer
        self.eos_token_ids = frozenset(eos_token_ids)
        self.seed = seed
        self.metrics = metrics
        self._seeds = np.random.default_rng(seed)
        self._owners: dict[Request, tuple[Task, Completion]] = {}
        self._num_added = 0
        self._num_requests = 0

    @property
    def has_work(self) -> bool:
        """True while any task is under way."""
        return self.scheduler.has_work

    def add(self, prompt: Any, params: SamplingParams) -> Task:
        """Queues a prompt. One that cannot be served comes back finished, with its error."""
        self._num_added += 1
        task = Task(
            request_id=str(self._num_added - 1),
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_ids=[],
            params=params,
            arrival_s=time.perf_counter(),
            # Drawn before any check: a refused prompt must not change what its neighbours draw.
            seed=int(self._seeds.integers(2**63)) if params.seed is None else params.seed,
        )
        try:
            if isinstance(prompt, RequestError):  # a conversation that could not be rendered
                raise prompt
            self._admit(task, prompt)
        except RequestError as error:
            task.error = str(error)
            self.metrics.finished["error"] += 1
        return task

    def step(self) -> list[StreamDelta]:
        """Runs one step if there is work: what it added to which completion."""
        plan = self.scheduler.schedule(time.perf_counter())
        if plan is None:
            return []
        drew = self._run(plan)
        self.metrics.see_usage(self._usage())
        now = time.perf_counter()
        return [self._take_in(request, now) for request in drew]

    def abort(self, task: Task) -> None:
        """Ends a task's unfinished completions with reason "abort"; frees their pages."""
        for completion in task.completions:
            if not completion.request.is_finished:
                completion.request.finish_reason = "abort"
                completion.flush()
                self._finish(completion.request, time.perf_counter())

    def reset(self) -> None:
        """Ends everything under way and starts with empty slots and pages.

        For an exception that came between two statements (Ctrl-C): page accounting may be half
        done, and a cache that was donated to a step may be gone.
        """
        for request in list(self._owners):
            request.finish_reason = request.finish_reason or "abort"
            self.metrics.finished[request.finish_reason] += 1
        self._owners.clear()
        self.scheduler = Scheduler(self.runner.geometry)
        self.runner.revive()

    def _admit(self, task: Task, prompt: Any) -> None:
        max_len = self.runner.geometry.max_model_len
        checked = read_prompt(
            prompt,
            self.tokenizer,
            vocab_size=self.config.vocab_size,
            max_model_len=max_len,
        )
        task.prompt, task.prompt_ids = checked.text, checked.token_ids
        self._check_params(task.params)
        task.completions = [self._completion(task, index) for index in range(task.params.n)]
        reason = self.scheduler.why_never(task.completions[0].request.max_cached_tokens)
        if reason is not None:
            task.completions = []
            raise RequestError(reason)
        for completion in task.completions:
            self._owners[completion.request] = (task, completion)
            self.scheduler.add(completion.request)
        self.metrics.prompt_tokens += len(task.prompt_ids)

    def _check_params(self, params: SamplingParams) -> None:
        for token in params.stop_token_ids:
            if token >= self.config.vocab_size:
                raise RequestError(
                    f"stop_token_ids holds {token}, the vocabulary has {self.config.vocab_size} "
                    "tokens; remove it"
                )
        if params.stop_strings and self.tokenizer is None:
            raise RequestError(
                f"stop={params.stop_strings!r} needs text and the checkpoint has no tokenizer; "
                "use stop_token_ids"
            )

    def _completion(self, task: Task, index: int) -> Completion:
        params = task.params
        room = max(1, self.runner.geometry.max_model_len - len(task.prompt_ids))
        eos = frozenset() if params.ignore_eos else self.eos_token_ids
        stop_ids = frozenset(params.stop_token_ids)
        self._num_requests += 1
        request = Request(
            request_id=task.request_id,
            prompt_ids=task.prompt_ids,
            params=params,
            max_new_tokens=min(params.max_tokens or room, room),
            end_ids=eos | stop_ids,
            stop_ids=stop_ids,
            seed=task.seed,
            sample_index=index,
            order=self._num_requests,
            arrival_s=task.arrival_s,
        )
        return Completion(request=request, detokenizer=self._detokenizer(task))

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

    def _run(self, plan: Plan) -> list[Request]:
        start = time.perf_counter()
        if isinstance(plan, PrefillPlan):
            result, _ = self.runner.prefill(plan)
            drew = self.scheduler.update_prefill(result)
            self.metrics.num_prefill_steps += 1
            self.metrics.prefill_seconds += time.perf_counter() - start
            return drew
        result, _ = self.runner.decode(plan)
        drew = self.scheduler.update_decode(plan, result)
        self.metrics.num_decode_steps += 1
        self.metrics.decode_seconds += time.perf_counter() - start
        return drew

    def _take_in(self, request: Request, now: float) -> StreamDelta:
        task, completion = self._owners[request]
        if request.error is None:
            self._count_token(request, now)
        text = completion.advance()
        if request.is_finished:
            self._finish(request, now)
        return task.delta(completion, text)

    def _count_token(self, request: Request, now: float) -> None:
        self.metrics.generation_tokens += 1
        if request.first_token_s is None:
            request.first_token_s = now
            self.metrics.see_first_token(now - request.arrival_s)

    def _finish(self, request: Request, now: float) -> None:
        request.finished_s = now
        self.scheduler.finish(request)
        self.metrics.see_usage(self._usage())
        del self._owners[request]
        self.metrics.finished[request.finish_reason or "abort"] += 1

    def _usage(self) -> float:
        pools = self.scheduler.pages.pools
        return sum(pool.num_used for pool in pools) / sum(pool.num_usable for pool in pools)
