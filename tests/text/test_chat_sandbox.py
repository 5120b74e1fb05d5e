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


@pytest.mark.parametrize(
    "expression",
    [
        "'x'.ljust(10**9)",
        "'x'.zfill(1000000000)",
        "'x' | center(1000000000)",
        "'x'.encode().rjust(10**9)",
        "(1).to_bytes(10**9)",
        "('\\t' * 9000).expandtabs(9000)",
        "('x' * 9000).replace('x', 'y' * 9000)",
        "('x' * 9000).translate({120: 'y' * 9000})",
        "('x' * 9000) | replace('', 'y' * 9000)",
        "('x' * 9000).join(['y'] * 9000)",
        "(['y'] * 9000) | join('x' * 9000)",
        "(['x' * 4000000] * 9) | join",
        "'%1000000000d' % 1",
        "'%*d' % (10**9, 1)",
        "'%(a)s%(a)s' % {'a': 'x' * 4000000}",
        "'%1000000000d' | format(1)",
        "'{:>1000000000}'.format(1)",
        "'{0}{0}'.format('x' * 4000000)",
        "'{a}{a}'.format_map({'a': 'x' * 4000000})",
        "('x' * 4000000) + ('x' * 4000000)",
        "('x' * 4000000) ~ ('x' * 4000000)",
        "('x' | center(4000000)) ~ ('x' | center(4000000))",
        "('\\n' * 9000) | indent(9000)",
        "('x' * 9000) | wordwrap(1, true, 'y' * 9000)",
        "[1] | batch(10**9, 1) | list",
        "[1] | slice(10**9) | list",
        "[1] | tojson(indent=10**9)",
        "['x'] | map('center', 10**9) | list",
    ],
)
def test_no_value_beyond_the_limit_is_made(expression: str) -> None:
    """A value of 4 Mi characters may be made; twice that, or 10^9 of padding, may not."""
    with pytest.raises(RequestError, match="at most|field width of"):
        render("{% set made = " + expression + " %}")


@pytest.mark.parametrize(
    "doubled",
    [
        "{% set ns.s = ns.s ~ ns.s %}",
        "{% set ns.s = ns.s + ns.s %}",
        "{% set both %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = both %}",
        "{% set ns.s = twice(ns.s) %}",
        "{% set ns.n = ns.n * ns.n %}",
    ],
)
def test_doubling_in_a_loop_ends(doubled: str) -> None:
    template = (
        "{% macro twice(s) %}{{ s }}{{ s }}{% endmacro %}{% set ns = namespace(s='x', n=3) %}"
        "{% for i in range(60) %}" + doubled + "{% endfor %}"
    )
    with pytest.raises(RequestError, match="at most"):
        render(template)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("'%s-%03d' % ('a', 7)", "a-007"),
        ("'%s' | format('a')", "a"),
        ("'{:>3}{a}'.format(1, a=2)", "  12"),
        ("['a', 1] | join(', ')", "a, 1"),
        ("', '.join(['a', 'b'])", "a, b"),
        ("messages | join('', attribute='content')", "x"),
        ("'aaa' | replace('a', 'bc', 2)", "bcbca"),
        ("'aaa'.replace('a', '')", ""),
        ("1 ~ none ~ 'x'", "1Nonex"),
        ("'a\\nb' | indent", "a\n    b"),
        ("'x' | center(3)", " x "),
        ("[1, 2, 3] | batch(2) | list", "[[1, 2], [3]]"),
        ("[1] + [2]", "[1, 2]"),
        ("7 % 4 + 1", "4"),
    ],
)
def test_bounded_operations_give_what_they_should(expression: str, text: str) -> None:
    assert render("{{ " + expression + " }}") == text


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
