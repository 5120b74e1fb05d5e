"""What a template may do, and what is stopped."""

import re

import pytest

from jaxinfer.errors import RequestError
from jaxinfer.text.chat import render_chat
from jaxinfer.text.chat_sandbox import ChatEnvironment

MESSAGES = [{"role": "user", "content": "x"}]


def render(template: str) -> str:
    return render_chat(template, MESSAGES)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__ }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ messages[0]['content'].__init__.__globals__ }}",
        "{{ (messages | attr('__class__')) }}",
        "{{ raise_exception.__globals__ }}",
        "{{ ''['__class__'] }}",
        "{% set ns = namespace(__class__=1) %}",
        "{% set ns = namespace() %}{% set ns.__dict__ = 1 %}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({}) }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{% include 'x' %}",
        "{{ lipsum.__globals__ }}",
    ],
)
def test_attribute_tricks_are_blocked(template: str) -> None:
    """BB-15 (textgen#6675, tabbyAPI#281, ai-starter-kit#847, lm-eval-harness#2109)."""
    with pytest.raises(RequestError, match="chat_template"):
        render(template)


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'x' * 10**9 }}",
        "{{ [1] * 10**9 }}",
        "{{ 9 ** 999 }}",
        "{{ 9 ** 60 ** 60 }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{% for i in range(1000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}",
        "{% for i in range(90000) %}{{ 'x' * 4000 }}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_growth_is_bounded(template: str) -> None:
    with pytest.raises(RequestError, match="chat_template"):
        render(template)


def test_ordinary_arithmetic_works() -> None:
    assert render("{{ 2 ** 10 }} {{ '-' * 3 }} {{ 2 * 3.5 }} {{ range(3) | list }}") == (
        "1024 --- 7.0 [0, 1, 2]"
    )


def test_tojson_keeps_characters() -> None:
    template = "{{ {'b': '<é>', 'a': 1} | tojson }} {{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}"
    assert render(template) == '{"b": "<é>", "a": 1} {"a": 2, "b": 1}'


def test_strftime_now() -> None:
    assert re.fullmatch(r"20\d\d-\d\d", render("{{ strftime_now('%Y-%m') }}"))


def test_names_set_in_a_generation_block_stay_inside() -> None:
    template = "{% set a = 1 %}{% generation %}{% set a = 2 %}{{ a }}{% endgeneration %}{{ a }}"
    assert ChatEnvironment().from_string(template).render() == "21"
