"""An LLM without a model: the engine's own intake and records, and tokens from a hash.

What it draws depends on the prompt, the seed, the sample and the position, as a real engine's.
"""

import hashlib
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Self

from jaxinfer.config.engine_config import engine_config
from jaxinfer.config.request_options import RequestOptions
from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.engine.intake import Intake
from jaxinfer.engine.metrics import EngineMetrics
from jaxinfer.engine.outputs import StreamDelta
from jaxinfer.engine.task import Completion, Task
from jaxinfer.errors import RequestError
from jaxinfer.text.tokenizer import Tokenizer
from tests.support.byte_tokenizer import END, byte_tokenizer

VOCABULARY = 258
POISON = 1  # a request whose prompt has this token ends with NaN
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


class FakeEngine:
    """Every running completion gets a token a step; before_step is called first."""

    def __init__(self, num_slots: int, max_model_len: int, tokenizer: Tokenizer) -> None:
        self.num_slots = num_slots
        self.intake = Intake(
            vocab_size=VOCABULARY,
            max_model_len=max_model_len,
            tokenizer=tokenizer,
            eos_token_ids=(END,),
            seed=0,
            max_logprobs=20,
        )
        self.metrics = EngineMetrics()
        self.before_step: Callable[[], None] = lambda: None
        self.num_steps = 0
        self.most_open = 0  # completions queued at once
        self._open: deque[tuple[Task, Completion]] = deque()

    @property
    def has_work(self) -> bool:
        return bool(self._open)

    def add(
        self, prompt: Any, params: SamplingParams, options: RequestOptions | None = None
    ) -> Task:
        task = self.intake.open_task(prompt, params, float(self.num_steps))
        try:
            self.intake.fill(task, prompt, options or RequestOptions(), scores=False)
        except RequestError as error:
            task.completions, task.error = [], str(error)
        self._open.extend((task, one) for one in task.completions)
        self.most_open = max(self.most_open, len(self._open))
        self.metrics.prompt_tokens += len(task.prompt_ids)
        return task

    def step(self) -> list[StreamDelta]:
        self.before_step()
        self.num_steps += 1
        running = [self._open[place] for place in range(min(self.num_slots, len(self._open)))]
        deltas = [self._advance(task, one) for task, one in running]
        if any(one.request.is_finished for _, one in running):
            self._open = deque(pair for pair in self._open if not pair[1].request.is_finished)
        return deltas

    def _advance(self, task: Task, completion: Completion) -> StreamDelta:
        request, now = completion.request, float(self.num_steps)
        request.admitted_s = now - 1 if request.admitted_s is None else request.admitted_s
        request.first_token_s = request.first_token_s or now
        if POISON in request.prompt_ids:
            request.finish_reason, request.error = "error", "NaN in the logits; check the weights"
            return task.delta(completion, completion.advance())
        request.accept_token(_draw(request))
        self.metrics.generation_tokens += 1
        text = completion.advance()
        if request.is_finished:
            request.finished_s = now
        return task.delta(completion, text)

    def abort(self, task: Task) -> None:
        for one in task.completions:
            one.request.finish_reason = one.request.finish_reason or "abort"
        self._open = deque(pair for pair in self._open if pair[0] is not task)

    def reset(self) -> None:
        self._open.clear()


def _draw(request: Any) -> int:
    """A printable letter, for most requests."""
    facts = (request.prompt_ids, request.seed, request.sample_index, len(request.output_ids))
    return ord("a") + hashlib.sha256(repr(facts).encode()).digest()[0] % 26


class FakeLLM:
    """What a batch job asks of an `LLM`."""

    def __init__(self, num_slots: int = 4, max_model_len: int = 64, **options: Any) -> None:
        self.tokenizer = byte_tokenizer(chat_templates={"default": TEMPLATE})
        self.engine = FakeEngine(num_slots, max_model_len, self.tokenizer)
        self.engine_config = engine_config(**options)
        kinds = dict.fromkeys(("weight_dtype", "activation_dtype", "kv_dtype"), "float32")
        kernels = dict.fromkeys(("attention_kernel", "norm_kernel", "expert_kernel"), "fake")
        self.geometry = SimpleNamespace(
            num_slots=num_slots, max_model_len=max_model_len, kv_scales=(), **kinds, **kernels
        )
        self.is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed = True

    def get_default_sampling_params(self) -> SamplingParams:
        return SamplingParams()

    def get_tokenizer(self) -> Tokenizer:
        return self.tokenizer

    def reset_prefix_cache(self) -> None:
        pass

    def get_metrics(self) -> dict[str, float]:
        return self.engine.metrics.snapshot() | {"num_compiles": 3.0, "compile_seconds": 1.5}
