"""JOINT. `LLM`: the offline API, with the names that vLLM's users know.

Knows prompts and outputs; what a step is, the engine knows.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from jaxinfer.config.engine_config import engine_config
from jaxinfer.config.request_options import RequestOptions
from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.engine.arguments import (
    as_conversations,
    as_prompts,
    check_priorities,
    options_for_each,
    params_for_each,
)
from jaxinfer.engine.build import build_engine
from jaxinfer.engine.chat_prompt import ChatPrompts
from jaxinfer.engine.outputs import RequestOutput, ScoreOutput, StreamDelta
from jaxinfer.engine.profiler import Profiler
from jaxinfer.engine.prompt import read_prompt
from jaxinfer.engine.task import Task
from jaxinfer.engine.task_loop import TaskLoop
from jaxinfer.engine.teacher import forced_hidden, forced_logits
from jaxinfer.errors import ConfigError, JaxInferError, RequestError
from jaxinfer.runner.compile import CompileLog, counted_compiles
from jaxinfer.text.tokenizer import Tokenizer

Message = Mapping[str, Any]
Params = SamplingParams | Sequence[SamplingParams] | None
Options = RequestOptions | Sequence[RequestOptions] | None


class LLM:
    """A model ready to generate. A context manager; `close` gives the memory back.

    Args:
        model: a Hugging Face folder, a `.gguf` file, a hub id, or a demo name ("smollm2-135m",
            "gemma3-270m").
        tokenizer: a folder or a `Tokenizer` in place of the checkpoint's own.
        show_progress: bars for download and load.
        options: fields of `EngineConfig`.

    Raises:
        ConfigError: an option that is unknown or wrong. UnsupportedError: known, but not built.
        CheckpointError: a model that is missing or damaged. CapacityError: it does not fit.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        tokenizer: str | Path | Tokenizer | None = None,
        show_progress: bool = True,
        **options: Any,
    ) -> None:
        self.engine_config = engine_config(**options)
        self._compiles = CompileLog()
        built = build_engine(
            model,
            self.engine_config,
            tokenizer=tokenizer,
            compiles=self._compiles,
            show_progress=show_progress,
        )
        self.engine = built.engine
        self.geometry = built.geometry
        self.memory_plan = built.memory
        self.model_config = built.checkpoint.config
        self._default_params = built.default_params
        self._profiler = Profiler()
        self._loop = TaskLoop(self.engine)
        self._listening = counted_compiles(self._compiles)
        self._listening.__enter__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees the device memory; the object cannot generate after it. May be called twice."""
        if not self._loop.is_closed:
            self._loop.is_closed = True
            self._listening.__exit__(None, None, None)
            try:
                self._profiler.close()
            finally:
                self.engine.close()

    def generate(
        self,
        prompts: Any,
        sampling_params: Params = None,
        *,
        use_tqdm: bool = True,
        priority: int | Sequence[int] | None = None,
        options: Options = None,
    ) -> list[RequestOutput]:
        """Completes prompts together, through continuous batching.

        Args:
            prompts: one prompt or a list: str, token ids, `{"prompt": …}` or
                `{"prompt_token_ids": …}`.
            sampling_params: for all, or one each.
            use_tqdm: a bar over the prompts.
            priority: for all, or one each; lower is served first with
                `scheduling_policy="priority"`.
            options: how they are served, for all or one each, in place of `priority`.

        Returns:
            As many outputs as prompts, in their order; one that failed has `error` set.

        Raises:
            ConfigError: as many parameters as prompts are needed. RequestError: with `strict`.
        """
        prompts = as_prompts(prompts)
        tasks = self._add(prompts, sampling_params, options, priority)
        self._loop.run(tasks, use_tqdm)
        return [self._output(task) for task in tasks]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params = None,
        *,
        use_tqdm: bool = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Any] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        priority: int | Sequence[int] | None = None,
        options: Options = None,
    ) -> list[RequestOutput]:
        """Answers one conversation or several; otherwise as `generate`.

        Args:
            messages: a list of messages (role and content), or a list of such lists.
            chat_template: in place of the checkpoint's.
            add_generation_prompt: end the prompt where the assistant's turn begins.
            continue_final_message: the last message is the beginning of the answer.
            tools: descriptions of functions, for templates that show them.
            chat_template_kwargs: more variables for the template.

        Raises:
            ConfigError: both flags at once. RequestError: no tokenizer, no template, or `strict`.
        """
        if add_generation_prompt and continue_final_message:
            raise ConfigError(
                "add_generation_prompt=True and continue_final_message=True contradict each other; "
                "set one to False"
            )
        self._loop.check_open()
        render = ChatPrompts(
            self.get_tokenizer(),
            template=chat_template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            variables=chat_template_kwargs,
        )
        prompts = [_chat_prompt(render, one) for one in as_conversations(messages)]
        tasks = self._add(prompts, sampling_params, options, priority)
        self._loop.run(tasks, use_tqdm)
        return [self._output(task) for task in tasks]

    def stream(
        self, prompts: Any, sampling_params: Params = None, *, options: Options = None
    ) -> Generator[StreamDelta, None, None]:
        """Yields what each step adds, as it comes; the deltas of a completion join to its text.

        Leaving the iterator early aborts what is under way. A refused prompt gives one delta with
        its error.
        """
        yield from self._loop.stream(self._add(as_prompts(prompts), sampling_params, options))

    def chat_stream(
        self, messages: Sequence[Message], sampling_params: SamplingParams | None = None
    ) -> Generator[StreamDelta, None, None]:
        """`stream` of one conversation.

        Raises:
            RequestError: the conversation cannot be served.
        """
        self._loop.check_open()
        prompt = {"prompt_token_ids": ChatPrompts(self.get_tokenizer()).token_ids(messages)}
        tasks = self._add([prompt], sampling_params)
        if tasks[0].error is not None:
            raise RequestError(tasks[0].error)
        yield from self._loop.stream(tasks)

    def score(self, prompts: Any, *, use_tqdm: bool = True) -> list[ScoreOutput]:
        """How likely each token of a prompt is after those before it; nothing is generated.

        Args:
            prompts: as in `generate`; of up to max_model_len tokens.
            use_tqdm: a bar over the prompts.

        Returns:
            As many outputs as prompts, in their order; one that failed has `error` set.

        Raises:
            RequestError: with `strict`.
        """
        params = SamplingParams(prompt_logprobs=0, detokenize=False)
        tasks = self._add(as_prompts(prompts), params, scores=True)
        self._loop.run(tasks, use_tqdm)
        return [self._loop.strictly(task.score_output()) for task in tasks]

    def logits(self, token_ids: Sequence[int], *, decode_from: int | None = None) -> np.ndarray:
        """Logits after each of the given tokens, through the engine's own steps.

        Args:
            token_ids: T ids.
            decode_from: tokens from this place on go in one by one through the decode step.

        Returns:
            [T, V] f32.

        Raises:
            RequestError: ids that `generate` would refuse too, or more than the pages hold.
            ConfigError: `decode_from` outside the tokens.
        """
        self._check_idle()
        checked = self._check_ids(token_ids)
        if decode_from is not None and decode_from not in range(1, len(checked) + 1):
            raise ConfigError(
                f"decode_from={decode_from!r} must be None or an int in [1, {len(checked)}]: at "
                "least the first token goes through prefill"
            )
        runner, pages = self.engine.runner, self.engine.scheduler.pages
        with self._loop.undone_on_error():
            return forced_logits(runner, pages, checked, decode_from=decode_from)

    def logit_blocks(
        self,
        token_ids: Sequence[int],
        places: Sequence[int],
        *,
        report: Callable[[int], Any] | None = None,
    ) -> Generator[np.ndarray, None, None]:
        """Yields the logits after the tokens at `places`, few rows at a time: a long text's logits
        over a whole vocabulary are more than memory holds.

        Args:
            token_ids: T ids, all prefilled.
            places: indices into them.
            report: called with the number of tokens that went in, step by step.

        Yields:
            [rows, V] f32.

        Raises:
            RequestError: as `logits`.
        """
        self._check_idle()
        checked = self._check_ids(token_ids)
        runner, pages, hidden = self.engine.runner, self.engine.scheduler.pages, []
        with self._loop.undone_on_error():
            for rows in forced_hidden(runner, pages, checked):
                hidden.append(rows)
                if report is not None:
                    report(len(rows))
        wanted = np.concatenate(hidden)[np.asarray(places, np.intp)]
        for first in range(0, len(wanted), self.geometry.head_rows):
            yield runner.logits(wanted[first : first + self.geometry.head_rows])

    def get_tokenizer(self) -> Tokenizer | None:
        """The tokenizer; None where the checkpoint has none."""
        return self.engine.intake.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What is drawn with where no parameters are given; see `use_generation_config`."""
        return replace(self._default_params)

    def get_metrics(self) -> dict[str, float]:
        """Counters, sizes and histograms by name."""
        return self.engine.numbers() | {
            "num_compiles": float(self._compiles.num_compiles),
            "compile_seconds": self._compiles.compile_seconds,
        }

    def reset_prefix_cache(self) -> None:
        """Forgets what the pages of earlier requests hold."""
        self._loop.check_open()
        self.engine.scheduler.reset_prefix_cache()

    def start_profile(self, folder: str | Path) -> None:
        """Starts jax's profiler; steps and layers have their names in what it writes.

        Args:
            folder: gets the trace, for TensorBoard or XProf.

        Raises:
            JaxInferError: a profile is under way already.
        """
        self._loop.check_open()
        self._profiler.start(folder)

    def stop_profile(self) -> None:
        """Ends the profile and writes it.

        Raises:
            JaxInferError: none is under way.
        """
        self._profiler.stop()

    def _add(
        self,
        prompts: Sequence[Any],
        params: Params,
        options: Options = None,
        priority: int | Sequence[int] | None = None,
        *,
        scores: bool = False,
    ) -> list[Task]:
        self._check_idle()
        each = params_for_each(params, len(prompts), self._default_params)
        services = options_for_each(options, priority, len(prompts))
        check_priorities(services, self.engine.ask.scheduling_policy)
        with self._loop.undone_on_error():
            return [
                self.engine.add(*request, scores=scores)
                for request in zip(prompts, each, services, strict=True)
            ]

    def _output(self, task: Task) -> RequestOutput:
        return self._loop.strictly(task.output(self.get_tokenizer()))

    def _check_ids(self, token_ids: Sequence[int]) -> list[int]:
        checked = read_prompt(
            {"prompt_token_ids": token_ids},
            None,
            vocab_size=self.model_config.vocab_size,
            max_model_len=self.geometry.max_model_len,
        ).token_ids
        reason = self.engine.scheduler.why_never(len(checked))
        if reason is not None:
            raise RequestError(reason)
        return checked

    def _check_idle(self) -> None:
        self._loop.check_open()
        if self.engine.has_work:
            raise JaxInferError(
                "another generate or stream of this LLM is under way; finish or close it first"
            )


def _chat_prompt(render: ChatPrompts, messages: Sequence[Message]) -> Any:
    """Token ids of a conversation, or the RequestError that its row will carry."""
    try:
        return {"prompt_token_ids": render.token_ids(messages)}
    except RequestError as error:
        return error
