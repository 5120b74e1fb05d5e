"""JOINT. `jaxinfer demo`: eight chat prompts of different lengths through continuous batching.

Knows the prompts and the closing table; the model's name is an option.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pydoc_data import topics
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxinfer.config.sampling_params import SamplingParams

if TYPE_CHECKING:
    from jaxinfer.engine.outputs import RequestOutput
    from jaxinfer.llm import LLM

# (characters of documentation put before the question, question, tokens to answer with)
_QUESTIONS: tuple[tuple[str | None, int, str, int], ...] = (
    (None, 0, "Hi! Who are you?", 24),
    (None, 0, "What is the capital of France?", 24),
    (None, 0, "Write a haiku about the sea at night.", 40),
    (None, 0, "Give me three tips for learning to cook, one sentence each.", 96),
    (None, 0, "Explain to a child why the sky is blue, in one short paragraph.", 128),
    ("while", 400, "Summarize the text above in one sentence.", 48),
    ("lambda", 900, "What does the text above describe? Answer in two sentences.", 64),
    ("exceptions", 1800, "List the main points of the text above.", 96),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRun:
    """What the demo measured. outputs: in the order of the prompts; seconds: of generation."""

    questions: tuple[str, ...]
    outputs: "tuple[RequestOutput, ...]"
    metrics: dict[str, float]
    seconds: float


def demo_conversations() -> list[tuple[str, list[dict[str, str]], SamplingParams]]:
    """(question, messages, parameters) of each of the eight requests."""
    rows = []
    for topic, characters, question, max_tokens in _QUESTIONS:
        excerpt = topics.topics[topic][:characters].strip() + "\n\n" if topic else ""
        messages = [{"role": "user", "content": excerpt + question}]
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        rows.append((question, messages, params))
    return rows


def run_demo(llm: "LLM") -> DemoRun:
    """Answers the eight prompts together, with a progress bar."""
    rows = demo_conversations()
    start = time.perf_counter()
    outputs = llm.chat([messages for _, messages, _ in rows], [params for *_, params in rows])
    seconds = time.perf_counter() - start
    return DemoRun(
        questions=tuple(question for question, *_ in rows),
        outputs=tuple(outputs),
        metrics=llm.get_metrics(),
        seconds=seconds,
    )


def print_demo(run: DemoRun, console: Console) -> None:
    """Prints the answers, a row a request, and the totals."""
    for question, output in zip(run.questions, run.outputs, strict=True):
        console.print(Text(question, style="bold"))
        answer = output.error if output.error is not None else output.outputs[0].text.strip()
        console.print(Text(answer, style="red" if output.error is not None else ""), "\n")
    console.print(request_table(run.questions, run.outputs))
    console.print(totals_table(run))


def request_table(questions: Sequence[str], outputs: "Sequence[RequestOutput]") -> Table:
    table = Table(title="requests", title_justify="left")
    table.add_column("question", overflow="ellipsis", no_wrap=True, max_width=28)
    for name in ("prompt\ntokens", "output\ntokens", "TTFT s", "tokens/s", "end"):
        table.add_column(
            name, justify="right", min_width=max(map(len, [*name.split("\n"), "length"]))
        )
    for question, output in zip(questions, outputs, strict=True):
        metrics = output.metrics
        table.add_row(
            question,
            str(metrics.num_prompt_tokens),
            str(metrics.num_generation_tokens),
            _seconds(metrics.time_to_first_token_s),
            _rate(1, metrics.time_per_output_token_s),
            "error" if output.error is not None else str(output.outputs[0].finish_reason),
        )
    return table


def totals_table(run: DemoRun) -> Table:
    tokens = sum(output.metrics.num_generation_tokens for output in run.outputs)
    metrics = run.metrics
    table = Table(title="totals", title_justify="left", show_header=False)
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_row("output tokens", str(tokens))
    table.add_row("seconds", f"{run.seconds:.2f}")
    table.add_row("tokens/s, all requests together", _rate(tokens, run.seconds))
    table.add_row("KV cache in use at the peak", f"{metrics['kv_cache_usage_peak_perc']:.1%}")
    table.add_row("programs", f"{metrics['num_programs']:.0f}")
    table.add_row("backend compiles", f"{metrics['num_compiles']:.0f}")
    table.add_row("compile seconds", f"{metrics['compile_seconds']:.1f}")
    table.add_row("load seconds", f"{metrics['model_load_seconds']:.1f}")
    return table


def _seconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.2f}"


def _rate(count: float, seconds: float | None) -> str:
    return f"{count / seconds:.1f}" if seconds else "–"
