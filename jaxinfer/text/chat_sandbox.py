"""HOST. The jinja2 environment that chat templates of strangers run in.

Offers what templates of the field expect (strftime_now, raise_exception, tojson, namespace, break
and continue, generation blocks) and refuses what could reach Python or grow without bound. Knows
nothing of messages.
"""

import json
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_REPEATED = 1 << 22  # characters or items that one `*` may make
MAX_EXPONENT = 64
MAX_RANGE_STEPS = 200_000  # numbers that all range() of one rendering may give


class TemplateRefusal(TemplateError):
    """The template itself refuses the messages, by raise_exception."""


class GenerationBlock(Extension):
    """`{% generation %} … {% endgeneration %}` marks what a model wrote; it renders as its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller: Macro) -> str:
        return caller()


class TemplateNamespace(Namespace):
    """`namespace()` without names that begin with an underscore."""

    def __init__(*args: Any, **values: Any) -> None:  # noqa: B902 (a template may pass self=)
        self, *rest = args
        attributes = dict(*rest, **values)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"namespace attribute {name!r} begins with an underscore")


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox: attribute tricks raise instead of giving an empty value."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationBlock, LoopControlExtension],
        )
        self.filters["tojson"] = _to_json
        self.globals.pop("lipsum", None)
        self.globals.update(
            raise_exception=_raise_exception,
            strftime_now=_strftime_now,
            namespace=TemplateNamespace,
        )

    def unsafe_undefined(self, obj: Any, attribute: str) -> jinja2.Undefined:
        raise SecurityError(f"attribute {attribute!r} of a {type(obj).__name__} is not accessible")

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and (abs(left) > 1 << 32 or abs(right) > MAX_EXPONENT):
            raise SecurityError(f"{left} ** {right} is too large")
        for items, count in ((left, right), (right, left)):
            if isinstance(items, str | list | tuple) and isinstance(count, int):
                if len(items) * count > MAX_REPEATED:
                    raise SecurityError(f"{len(items)} items * {count} is over {MAX_REPEATED}")
        return super().call_binop(context, operator, left, right)


class RangeBudget:
    """`range` for one rendering, with a bound on the numbers of all its calls together."""

    def __init__(self) -> None:
        self._left = MAX_RANGE_STEPS

    def __call__(self, *bounds: int) -> range:
        numbers = range(*bounds)
        self._left -= len(numbers)
        if self._left < 0:
            raise SecurityError(f"range() gives more than {MAX_RANGE_STEPS} numbers in all")
        return numbers


def _raise_exception(message: object) -> NoReturn:
    raise TemplateRefusal(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
