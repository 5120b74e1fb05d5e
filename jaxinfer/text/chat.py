"""HOST. Chat messages to prompt text, by the checkpoint's jinja template in a sandbox.

As with the field's other engines the rendered text is then encoded once, special tokens in it
included and none added (`Tokenizer.encode(text, add_special_tokens=False)`): turn markers that a
user writes become control tokens, so text from strangers must be cleaned by the caller. Knows
nothing of tokenizers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError

from jaxinfer.errors import ConfigError, RequestError
from jaxinfer.text.chat_content import ContentForm, content_form, plain_messages, plain_value
from jaxinfer.text.chat_sandbox import ChatEnvironment, RangeBudget, TemplateRefusal
from jaxinfer.text.template_files import MAX_TEMPLATE_BYTES

MAX_RENDERED_CHARACTERS = 1 << 24


class ChatTemplate:
    """A compiled chat template; compile once, render often.

    Args:
        source: the jinja text.

    Raises:
        RequestError: too long, or not a template; the message has the line.
    """

    def __init__(self, source: str) -> None:
        if len(source) > MAX_TEMPLATE_BYTES:
            raise RequestError(
                f"chat_template: {len(source)} characters, at most {MAX_TEMPLATE_BYTES}; shorten it"
            )
        environment = ChatEnvironment()
        try:
            self.form: ContentForm = content_form(environment.parse(source))
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise RequestError(
                f"chat_template line {error.lineno}: {error.message}; correct the template"
            ) from None
        except (SecurityError, RecursionError) as error:
            raise RequestError(f"chat_template: {error}; correct the template") from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Any] | None = None,
        extra_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text of a conversation.

        Args:
            messages: dicts with role and content; content is text or a list of text parts.
            bos_token: as the template may print it. eos_token: likewise.
            add_generation_prompt: end with the start of an assistant turn.
            continue_final_message: end exactly with the last message, its end marker left out.
            tools: descriptions of functions (JSON-like), handed to the template.
            extra_kwargs: further variables of the template; they beat all others but messages.

        Raises:
            ConfigError: add_generation_prompt and continue_final_message together.
            RequestError: messages of another form, or a template that refuses or fails on them.
        """
        if add_generation_prompt and continue_final_message:
            raise ConfigError(
                "continue_final_message=True with add_generation_prompt=True: a prompt ends either "
                "with the last message or with a new turn; set one of them to False"
            )
        chat = plain_messages(messages, self.form)
        mark = _mark_last(chat) if continue_final_message else None
        tokens = {"bos_token": bos_token, "eos_token": eos_token}
        variables = {name: token for name, token in tokens.items() if token is not None}
        variables |= {"tools": plain_value(tools, "tools") if tools else None, "documents": None}
        variables |= {"add_generation_prompt": add_generation_prompt}
        variables |= plain_value(dict(extra_kwargs or {}), "chat_template_kwargs")
        text = self._run({**variables, "messages": chat, "range": RangeBudget()})
        return text if mark is None else _cut_at(text, mark)

    def _run(self, variables: dict[str, Any]) -> str:
        pieces, length = [], 0
        try:
            for piece in self._template.generate(variables):
                length += len(piece)
                if length > MAX_RENDERED_CHARACTERS:
                    raise RequestError(
                        f"chat_template: renders over {MAX_RENDERED_CHARACTERS} characters; "
                        "shorten the messages or the template"
                    )
                pieces.append(piece)
        except TemplateRefusal as error:
            raise RequestError(f"chat_template refuses these messages: {error.message}") from None
        except RequestError:
            raise
        except (TemplateError, jinja2.UndefinedError, SecurityError) as error:
            raise RequestError(
                f"chat_template fails on these messages: {error.message}; change one of the two"
            ) from None
        except Exception as error:  # templates run code of their own: whatever it raises
            raise RequestError(
                f"chat_template fails on these messages: {type(error).__name__}: {error}; "
                "change one of the two"
            ) from None
        return "".join(pieces)


def render_chat(
    template: str | ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    *,
    bos_token: str | None = None,
    eos_token: str | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    tools: Sequence[Any] | None = None,
    extra_kwargs: Mapping[str, Any] | None = None,
) -> str:
    """`ChatTemplate.render` of a template given as text or compiled."""
    compiled = ChatTemplate(template) if isinstance(template, str) else template
    return compiled.render(
        messages,
        bos_token=bos_token,
        eos_token=eos_token,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        tools=tools,
        extra_kwargs=extra_kwargs,
    )


def _mark_last(chat: list[dict[str, Any]]) -> str:
    """Puts a mark that occurs nowhere else behind the last message's text, and returns it."""
    everything, number = repr(chat), 0
    while f"ENDOFPREFILL{number}X" in everything:
        number += 1
    mark = f"ENDOFPREFILL{number}X"
    content = chat[-1].get("content")
    if isinstance(content, str):
        chat[-1]["content"] = content + mark
    elif content:
        content[-1] = {**content[-1], "text": content[-1]["text"] + mark}
    else:
        raise RequestError(
            f"continue_final_message=True: the last message has content={content!r}; "
            "it must have text to continue"
        )
    return mark


def _cut_at(text: str, mark: str) -> str:
    place = text.rfind(mark)
    if place < 0:
        raise RequestError(
            "continue_final_message=True: the template does not print the last message as it is; "
            "set it to False"
        )
    return text[:place]
