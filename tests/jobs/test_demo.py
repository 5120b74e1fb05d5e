"""The eight prompts of the demo and its tables."""

import io
import re

from rich.console import Console

from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.jobs.demo import demo_conversations, print_demo, run_demo
from tests.jobs.fake_llm import FakeLLM


def test_eight_prompts_of_different_lengths() -> None:
    rows = demo_conversations()
    lengths = [len(messages[0]["content"]) for _, messages, _ in rows]
    assert len(rows) == 8 and len(set(lengths)) == 8 and max(lengths) > 10 * min(lengths)
    assert all(params.temperature == 0 for *_, params in rows)


def test_a_failed_request_is_shown_and_the_others_too() -> None:
    llm = FakeLLM("m")
    run = run_demo(llm)
    outputs = list(run.outputs)
    outputs[0] = llm.generate(["bad"], SamplingParams())[0]
    run = type(run)(
        questions=run.questions, outputs=tuple(outputs), metrics=run.metrics, seconds=2.0
    )
    out = io.StringIO()
    print_demo(run, Console(file=out, width=120))
    assert "the prompt is bad" in out.getvalue() and "error" in out.getvalue()
    totals = [re.sub(r"\W*│\W*", "|", line) for line in out.getvalue().splitlines()]
    assert "|output tokens|14|" in totals
    assert "|tokens/s, all requests together|7.0|" in totals
