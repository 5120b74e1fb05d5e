"""Outputs as text and as JSON lines."""

import io
import json
from dataclasses import replace

from rich.console import Console

from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.engine.outputs import RequestOutput
from jaxinfer.jobs.generate import print_drafts, print_outputs
from tests.jobs.fake_llm import FakeLLM, completion, request_output


def shown(outputs: list[RequestOutput], *, as_json: bool) -> tuple[int, str]:
    out = io.StringIO()
    failed = print_outputs(outputs, as_json=as_json, console=Console(file=out, width=40))
    return failed, out.getvalue()


def test_json_lines_have_no_infinities() -> None:
    failed, text = shown(FakeLLM("m").generate(["a b", "bad"], SamplingParams()), as_json=True)
    first, second = (json.loads(line) for line in text.splitlines())
    assert first["outputs"][0]["text"] == " b a"
    assert first["outputs"][0]["cumulative_logprob"] is None
    assert second["error"].startswith("the prompt is bad") and failed == 1


def test_text_is_neither_wrapped_nor_read_as_markup() -> None:
    text = "[b] " + "word " * 20
    _, out = shown([request_output("p", [completion(text)])], as_json=False)
    assert out == f"p{text}\n"


def test_a_line_about_drafts_where_there_were_some() -> None:
    plain, drafted = (request_output("p", [completion("a")]) for _ in range(2))
    counts = {"num_drafts": 2, "num_draft_tokens": 8, "num_accepted_draft_tokens": 3}
    drafted = replace(drafted, metrics=replace(drafted.metrics, **counts))
    for outputs, line in (([plain], ""), ([plain, drafted], "drafts: 3 of 8 tokens stood, 2.50 ")):
        out = io.StringIO()
        print_drafts(outputs, Console(file=out, width=80))
        assert out.getvalue().startswith(line) and bool(out.getvalue()) == bool(line)


def test_completions_of_one_prompt_are_numbered() -> None:
    completions = [completion(f" {n}", index=n) for n in range(2)]
    _, out = shown([request_output("p", completions)], as_json=False)
    assert out.splitlines() == ["[0] p 0", "[1] p 1"]
