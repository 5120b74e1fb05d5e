"""HOST. The jinja2 environment that chat templates of strangers run in.

Offers what templates of the field expect (strftime_now, raise_exception, tojson, namespace, break
and continue, generation blocks) and refuses what could reach Python. One string or list that an
operator, a string method, a filter that pads, repeats or joins, a macro or a set block makes has at
most MAX_REPEATED characters or items, and range() gives MAX_RANGE_STEPS numbers in all. Not
bounded: time (loops in loops over lists), how many such values a template keeps, and the text of a
list that holds one long string many times. Knows nothing of messages.
"""

import json
import re
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import filters, nodes, pass_environment
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Namespace

MAX_REPEATED = 1 << 22  # characters or items of one value that a template makes
MAX_EXPONENT = 64
MAX_INTEGER_BITS = 1 << 16
MAX_JSON_INDENT = 64
MAX_RANGE_STEPS = 200_000  # numbers that all range() of one rendering may give

_PRINTF_FIELD = re.compile(r"%(?:\([^)]*\))?[-+ #0]*(\d+|\*)?(?:\.(\d+|\*))?")
_SIZED = str | bytes | list | tuple


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


def _check_size(size: int) -> None:
    if size > MAX_REPEATED:
        raise SecurityError(f"would make {size} characters or items, at most {MAX_REPEATED}")


def join_bounded(pieces: Iterable[str], separator: str = "") -> str:
    """`separator.join(pieces)` up to MAX_REPEATED characters."""
    pieces = list(pieces)
    _check_size(sum(map(len, pieces)) + len(separator) * len(pieces))
    return separator.join(pieces)


class BoundedFormatter(SandboxedFormatter):
    """`str.format` of one text, up to MAX_REPEATED characters of fields."""

    size = 0

    def format_field(self, value: Any, format_spec: str) -> str:
        for number in re.findall(r"\d+", format_spec):
            _check_size(int(number))
        text = super().format_field(value, format_spec)
        self.size += len(text)
        _check_size(self.size)
        return text


class BoundedGenerator(CodeGenerator):
    """Compiles `~` to a bounded join, and leaves all evaluation to the rendering."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat(map(str, (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write(")))")

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        if not isinstance(node, nodes.TemplateData):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox: attribute tricks raise instead of giving an empty value."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})
    code_generator_class = BoundedGenerator
    concat = staticmethod(join_bounded)  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=[GenerationBlock, LoopControlExtension],
        )
        self.filters.update(_BOUNDED_FILTERS, tojson=_to_json)
        self.globals.pop("lipsum", None)
        self.globals.update(
            raise_exception=_raise_exception,
            strftime_now=_strftime_now,
            namespace=TemplateNamespace,
        )

    def unsafe_undefined(self, obj: Any, attribute: str) -> jinja2.Undefined:
        raise SecurityError(f"attribute {attribute!r} of a {type(obj).__name__} is not accessible")

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        _check_operator(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **named: Any) -> Any:  # noqa: B902
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str | bytes | int) and name in _METHOD_SIZES:
            if name == "join" and args:
                args = (list(args[0]), *args[1:])
            _check_size(_METHOD_SIZES[name](owner, *args, **named))
        return super().call(__context, __obj, *args, **named)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if super().wrap_str_format(value) is None:
            return None

        def run(*args: Any, **named: Any) -> str:
            values = args[0] if value.__name__ == "format_map" else named
            return BoundedFormatter(self).vformat(value.__self__, args, values)

        return run


def _check_operator(operator: str, left: Any, right: Any) -> None:
    if operator == "**" and (abs(left) > 1 << 32 or abs(right) > MAX_EXPONENT):
        raise SecurityError(f"{left} ** {right} is too large")
    if operator == "%" and isinstance(left, str):
        _check_printf(left, right)
    if operator == "+" and isinstance(left, _SIZED) and isinstance(right, _SIZED):
        _check_size(len(left) + len(right))
    if operator == "*":
        for items, count in ((left, right), (right, left)):
            if isinstance(items, _SIZED) and isinstance(count, int):
                _check_size(len(items) * count)
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() + right.bit_length()
            if bits > MAX_INTEGER_BITS:
                raise SecurityError(f"a product of {bits} bits, at most {MAX_INTEGER_BITS}")


def _check_printf(text: str, values: Any) -> None:
    """Refuses `text % values` that may be too long: every value counts as the longest one."""
    fields = _PRINTF_FIELD.findall(text)
    widths = [width for field in fields for width in field if width]
    if "*" in widths:
        raise SecurityError("a field width of * cannot be checked; write the number")
    given = values.values() if isinstance(values, dict) else values
    given = given if isinstance(values, dict | tuple) else (values,)
    longest = max((len(value) for value in given if isinstance(value, str)), default=0)
    _check_size(len(text) + sum(map(int, widths)) + len(fields) * longest)


def _replaced_size(text: str, old: str, new: str, count: int = -1) -> int:
    found = text.count(old)
    found = found if count < 0 else min(found, count)
    return len(text) + found * max(0, len(new) - len(old))


def _translated_size(text: str, table: Any) -> int:
    texts = table.values() if isinstance(table, dict) else table
    return len(text) * max((len(one) for one in texts if isinstance(one, str)), default=1)


# Methods of str, bytes and int → the length of what they give, at most.
_METHOD_SIZES: dict[str, Callable[..., int]] = {
    **dict.fromkeys(("ljust", "rjust", "center", "zfill"), lambda _, width, *fill: width),
    "to_bytes": lambda _, length=1, *order, **named: length,
    "expandtabs": lambda text, tabsize=8: len(text) * max(1, tabsize),
    "join": lambda text, items: sum(map(len, items)) + len(text) * len(items),
    "replace": _replaced_size,
    "translate": _translated_size,
}


def _center(value: Any, width: int = 80) -> str:
    _check_size(width)
    return filters.do_center(str(value), width)


def _indent(value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    text, step = str(value), len(width) if isinstance(width, str) else width
    _check_size(len(text) + (len(text.splitlines()) + 1) * step)
    return filters.do_indent(text, width, first, blank)


def _format(value: Any, *args: Any, **named: Any) -> str:
    _check_printf(str(value), named or args)
    return filters.do_format(value, *args, **named)


def _replace(value: Any, old: Any, new: Any, count: int | None = None) -> str:
    text, pair, limit = str(value), (str(old), str(new)), -1 if count is None else count
    _check_size(_replaced_size(text, *pair, limit))
    return text.replace(*pair, limit)


@pass_environment
def _join(
    environment: jinja2.Environment, value: Iterable, d: Any = "", attribute: Any = None
) -> str:
    if attribute is not None:
        value = map(filters.make_attrgetter(environment, attribute), value)
    return join_bounded(map(str, value), str(d))


@pass_environment
def _wordwrap(
    environment: jinja2.Environment,
    s: str,
    width: int = 79,
    break_long_words: bool = True,
    wrapstring: str | None = None,
    break_on_hyphens: bool = True,
) -> str:
    _check_size(len(s) * (1 + len(wrapstring or "\n")))
    return filters.do_wordwrap(
        environment, s, width, break_long_words, wrapstring, break_on_hyphens
    )


def _batch(value: Iterable, linecount: int, fill_with: Any = None) -> Iterable:
    _check_size(linecount)
    return filters.do_batch(value, linecount, fill_with)


def _slice(value: Iterable, slices: int, fill_with: Any = None) -> Iterable:
    _check_size(slices)
    return filters.sync_do_slice(value, slices, fill_with)  # type: ignore[arg-type]


_BOUNDED_FILTERS: dict[str, Callable[..., Any]] = {
    "center": _center,
    "indent": _indent,
    "format": _format,
    "replace": _replace,
    "join": _join,
    "wordwrap": _wordwrap,
    "batch": _batch,
    "slice": _slice,
}


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
    if isinstance(indent, int) and indent > MAX_JSON_INDENT:
        raise SecurityError(f"tojson(indent={indent}): at most {MAX_JSON_INDENT}")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
