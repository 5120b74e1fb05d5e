"""HOST. Conversations to prompts: the chat template, compiled once, and the tokenizer."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxinfer.errors import RequestError
from jaxinfer.text.chat import ChatTemplate
from jaxinfer.text.template_files import choose_template
from jaxinfer.text.tokenizer import Tokenizer


class ChatPrompts:
    """Renders conversations with one choice of template and flags.

    Args:
        tokenizer: None where the checkpoint has none; nothing can be rendered then.
        template: in place of the tokenizer's.
        tools: descriptions of functions; they choose the template too.
        variables: more variables for the template.

    Raises:
        RequestError: no tokenizer, no template to choose, or one that does not compile.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        *,
        template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Any] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        if tokenizer is None:
            raise RequestError(
                "chat needs text and the checkpoint has no tokenizer; pass token ids to generate"
            )
        chosen = choose_template(tokenizer.chat_templates, tools=tools, argument=template)
        self._template = ChatTemplate(chosen)
        self._tokenizer = tokenizer
        self._flags: dict[str, Any] = {
            "bos_token": tokenizer.bos_token,
            "eos_token": tokenizer.eos_token,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "tools": tools,
            "extra_kwargs": {**tokenizer.special_tokens, **(variables or {})},
        }

    def token_ids(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The prompt of one conversation: rendered, then encoded once with nothing added.

        Raises:
            RequestError: messages that the template or its rules refuse.
        """
        text = self._template.render(messages, **self._flags)
        return self._tokenizer.encode(text, add_special_tokens=False)
