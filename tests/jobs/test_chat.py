"""The conversation that a terminal keeps."""

import io
from collections.abc import Callable

from rich.console import Console

from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.jobs.chat import converse
from tests.jobs.fake_llm import FakeLLM


def run(lines: list[str], system: str | None = None) -> tuple[FakeLLM, str]:
    llm, out = FakeLLM("m"), io.StringIO()
    console = Console(file=out, width=100)
    converse(llm, system, SamplingParams(), console, reader(lines))
    return llm, out.getvalue()


def reader(lines: list[str]) -> Callable[[], str]:
    rest = iter(lines)

    def read_line() -> str:
        try:
            return next(rest)
        except StopIteration:
            raise EOFError from None

    return read_line


def test_answers_become_part_of_the_conversation() -> None:
    llm, _ = run(["a b", "", "c d"], system="s")
    assert [message["content"] for message in llm.asked[1]] == ["s", "a b", " b a", "c d"]


def test_clear_keeps_the_system_message() -> None:
    llm, _ = run(["a b", "/clear", "c d"], system="s")
    assert [message["content"] for message in llm.asked[1]] == ["s", "c d"]


def test_a_message_that_cannot_be_served_is_dropped() -> None:
    llm, shown = run(["bad", "c d", "/exit", "never"])
    assert "the prompt is bad" in shown
    assert [message["content"] for message in llm.asked[1]] == ["c d"]
    assert len(llm.asked) == 2


def test_text_that_looks_like_markup_is_shown_as_it_is() -> None:
    _, shown = run(["[red]x[/red] [b]"])
    assert "[b] [red]x[/red]" in shown
