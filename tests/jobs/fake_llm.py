"""A language model that needs no model: it answers with words of the prompt, reversed."""

from collections.abc import Iterator
from typing import Any, Self

from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.engine.outputs import (
    CompletionOutput,
    RequestMetrics,
    RequestOutput,
    StreamDelta,
)

METRICS = {
    "kv_cache_usage_peak_perc": 0.25,
    "num_programs": 4.0,
    "num_compiles": 5.0,
    "compile_seconds": 1.5,
    "model_load_seconds": 2.5,
}


def completion(text: str, index: int = 0) -> CompletionOutput:
    """A completion of two tokens."""
    return CompletionOutput(
        index=index,
        text=text,
        token_ids=[1, 2],
        cumulative_logprob=float("-inf"),
        logprobs=None,
        finish_reason="length",
        stop_reason=None,
        seed=7,
    )


def request_output(
    prompt: str, outputs: list[CompletionOutput], error: str | None = None
) -> RequestOutput:
    """A request that took two seconds, or one that never began."""
    ran = error is None
    return RequestOutput(
        request_id="0",
        prompt=prompt,
        prompt_token_ids=[1, 2, 3],
        outputs=outputs,
        finished=True,
        metrics=RequestMetrics(
            time_to_first_token_s=0.5 if ran else None,
            time_per_output_token_s=0.25 if ran else None,
            e2e_latency_s=0.75 if ran else None,
            queue_time_s=0.0 if ran else None,
            num_prompt_tokens=3,
            num_generation_tokens=2 if ran else 0,
        ),
        error=error,
    )


class FakeLLM:
    """Records how it was opened and asked. A prompt that holds "bad" is a request's fault."""

    def __init__(self, model: str, **options: Any) -> None:
        self.model, self.options = model, options
        self.asked: list[Any] = []
        self.params: list[SamplingParams] = []
        self.is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed = True

    def generate(
        self, prompts: list[str], params: Any, use_tqdm: bool = True
    ) -> list[RequestOutput]:
        self.asked += prompts
        self.params.append(params)
        return [self._answer(prompt) for prompt in prompts]

    def chat(self, messages: list[Any], params: Any, **_: Any) -> list[RequestOutput]:
        self.asked += messages
        self.params += params
        return [self._answer(one[-1]["content"]) for one in messages]

    def chat_stream(self, messages: list[dict[str, str]], params: Any) -> Iterator[StreamDelta]:
        self.asked.append(messages)
        self.params.append(params)
        output = self._answer(messages[-1]["content"])
        if output.error is not None:
            yield StreamDelta(request_id="0", index=0, text="", token_ids=[], error=output.error)
            return
        for character in output.outputs[0].text:
            yield StreamDelta(request_id="0", index=0, text=character, token_ids=[1])

    def get_metrics(self) -> dict[str, float]:
        return METRICS

    def _answer(self, prompt: str) -> RequestOutput:
        if "bad" in prompt:
            return request_output(prompt, [], error="the prompt is bad; send another")
        text = " " + " ".join(reversed(prompt.split()))
        return request_output(prompt, [completion(text)])
