"""Which content a template wants, and which messages are accepted."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from jinja2 import Environment

from jaxinfer.errors import RequestError
from jaxinfer.text.chat_content import content_form, plain_messages, plain_value
from tests.text import chat_templates

PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


@pytest.mark.parametrize(
    ("source", "form"),
    [
        (chat_templates.CHATML, "text"),
        (chat_templates.TRIMS, "text"),
        (chat_templates.LOOPS_OR_TEXT, "either"),
        (chat_templates.LOOPS_ONLY, "parts"),
        ("{% for c in messages[0].content %}{{ c.text }}{% endfor %}", "parts"),
        ("{% for c in messages[0].content.split('x') %}{{ c }}{% endfor %}", "text"),
        ("{% macro f(content) %}{% for c in content %}x{% endfor %}{% endmacro %}", "parts"),
        ("{% for content in messages %}{% for c in content %}{% endfor %}{% endfor %}", "text"),
    ],
)
def test_form_from_the_template(source: str, form: str) -> None:
    assert content_form(Environment().parse(source)) == form


def test_content_in_each_form() -> None:
    """BB-16 (vllm#9358, #8942, verifiers#179): joined for text templates, else the list."""
    messages = [{"role": "user", "content": PARTS}]
    assert plain_messages(messages, "text") == [{"role": "user", "content": "a\nb"}]
    assert plain_messages(messages, "parts") == messages == plain_messages(messages, "either")
    text = [{"role": "user", "content": "a"}]
    assert plain_messages(text, "text") == text == plain_messages(text, "either")
    assert plain_messages(text, "parts") == [{"role": "user", "content": PARTS[:1]}]


def test_the_callers_messages_are_not_touched() -> None:
    message = {"role": "user", "content": [dict(PARTS[0])], "extra": {"k": (1, 2.5, None)}}
    plain = plain_messages([message], "parts")
    plain[0]["content"][0]["text"] = "changed"
    assert message["content"] == PARTS[:1]
    assert plain[0]["extra"] == {"k": [1, 2.5, None]}


def test_a_turn_of_tool_calls_needs_no_content() -> None:
    message: Mapping[str, Any] = MappingProxyType(
        {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}
    )
    assert plain_messages([message], "text")[0]["tool_calls"] == [{"name": "f"}]


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        ([], "at least one"),
        ("hi", "messages=str"),
        ({"role": "user", "content": "x"}, "messages=dict"),
        (["hi"], r"messages\[0\]"),
        ([{"content": "x"}], "role=None"),
        ([{"role": "user"}], "content is missing"),
        ([{"role": "user", "content": "x"}, {"role": "user", "content": 5}], r"messages\[1\].*int"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], "image_url"),
        ([{"role": "user", "content": [5]}], r"content\[0\]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "text=None"),
        ([{"role": "user", "content": "x", "o": object()}], "object"),
    ],
)
def test_messages_that_are_refused(messages: Any, named: str) -> None:
    with pytest.raises(RequestError, match=named):
        plain_messages(messages, "text")


def test_values_nested_too_deeply() -> None:
    value: Any = 0
    for _ in range(100):
        value = [value]
    with pytest.raises(RequestError, match="tools"):
        plain_value(value, "tools")


def test_subclasses_become_plain() -> None:
    class Text(str):
        def secret(self) -> None: ...

    assert type(plain_value([Text("x")], "here")[0]) is str
