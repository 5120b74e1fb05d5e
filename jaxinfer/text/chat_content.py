"""HOST. What a message may hold, and the form of content that a chat template wants.

Content is text or a list of text parts. A template that loops over content gets the list; any other
gets the parts joined by line breaks, as the field's engines do it. Knows nothing of rendering.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from jinja2 import nodes

from jaxinfer.errors import RequestError

ContentForm = Literal["text", "parts", "either"]
MAX_DEPTH = 64
_TEXT_PARTS = ("text", "input_text", "output_text")


def content_form(template: nodes.Template) -> ContentForm:
    """Which content the template handles: "text", "parts" (it loops), "either" (it asks first)."""
    names = _content_names(template)
    loops = any(_is_content(loop.iter, names) for loop in template.find_all(nodes.For))
    if not loops:
        return "text"
    tests = template.find_all(nodes.Test)
    asks = any(test.name == "string" and _is_content(test.node, names) for test in tests)
    return "either" if asks else "parts"


def _content_names(template: nodes.Template) -> set[str]:
    """Names that stand for a message's content: set from it, or a macro's parameter called so."""
    names = {
        argument.name
        for macro in template.find_all(nodes.Macro)
        for argument in macro.args
        if argument.name == "content"
    }
    assigned = list(template.find_all(nodes.Assign))
    while True:
        found = {
            node.target.name
            for node in assigned
            if isinstance(node.target, nodes.Name) and _is_content(node.node, names)
        }
        if found <= names:
            return names
        names |= found


def _is_content(node: nodes.Node, names: set[str]) -> bool:
    """Whether an expression is the content of a message, possibly filtered."""
    if isinstance(node, nodes.Filter):
        return node.node is not None and _is_content(node.node, names)
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    return isinstance(node, nodes.Name) and node.name in names


def plain_messages(
    messages: Sequence[Mapping[str, Any]], form: ContentForm
) -> list[dict[str, Any]]:
    """A copy of the messages in plain types, with content in the form that the template wants.

    Raises:
        RequestError: no messages, or one without a role, with content of another type, or with a
            part that is not text; the message names its position.
    """
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise RequestError(
            f"messages={type(messages).__name__}: must be a list of dicts with role and content"
        )
    if not messages:
        raise RequestError("messages=[]: must hold at least one message; add one")
    return [_plain_message(index, message, form) for index, message in enumerate(messages)]


def _plain_message(index: int, message: Any, form: ContentForm) -> dict[str, Any]:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise RequestError(f"{where}={message!r}: must be a dict with role and content")
    if not isinstance(message.get("role"), str):
        raise RequestError(f"{where}: role={message.get('role')!r} must be a string; set it")
    plain = plain_value(dict(message), where)
    if plain.get("content") is None:
        if not (plain.get("tool_calls") or plain.get("function_call")):
            raise RequestError(f"{where}: content is missing; must be text or a list of text parts")
        return plain
    return {**plain, "content": _content(where, plain["content"], form)}


def _content(where: str, content: Any, form: ContentForm) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if form == "parts" else content
    if not isinstance(content, list):
        raise RequestError(
            f"{where}: content is a {type(content).__name__}; must be text or a list of text parts"
        )
    parts = [_text_part(f"{where}.content[{i}]", part) for i, part in enumerate(content)]
    return "\n".join(part["text"] for part in parts) if form == "text" else parts


def _text_part(where: str, part: Any) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    if kind not in _TEXT_PARTS:
        raise RequestError(f"{where}: type {kind!r} is not supported, only text parts; remove it")
    text = part.get("text")
    if not isinstance(text, str):
        raise RequestError(f"{where}: text={text!r} must be a string; correct it")
    return {**part, "type": "text"}


def plain_value(value: Any, where: str, depth: int = 0) -> Any:
    """A copy in JSON types only: a template must not reach methods of foreign objects.

    Raises:
        RequestError: a value of another type, or nested too deeply; `where` begins the message.
    """
    if value is None or type(value) in (str, int, float, bool):
        return value
    if depth > MAX_DEPTH:
        raise RequestError(f"{where}: nested deeper than {MAX_DEPTH}; flatten it")
    if isinstance(value, Mapping):
        return {str(key): plain_value(item, where, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item, where, depth + 1) for item in value]
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise RequestError(
        f"{where}: holds a {type(value).__name__}; only JSON-like values can go to a chat template"
    )
