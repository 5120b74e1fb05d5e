"""Conversations to token ids: rendered with every special token, encoded once."""

import pytest

from jaxinfer.engine.chat_prompt import ChatPrompts
from jaxinfer.errors import RequestError
from tests.support.byte_tokenizer import byte_tokenizer

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }}{% endfor %}{{ mark }}"
)


def test_a_conversation_is_encoded_once_with_nothing_added() -> None:
    tokenizer = byte_tokenizer()
    render = ChatPrompts(tokenizer, template=TEMPLATE, variables={"mark": "!"})
    ids = render.token_ids([{"role": "user", "content": "hi"}])
    text = (tokenizer.bos_token or "") + "user:hi!"
    assert ids == tokenizer.encode(text, add_special_tokens=False)


def test_without_a_tokenizer_or_a_template_nothing_is_rendered() -> None:
    with pytest.raises(RequestError, match="no tokenizer"):
        ChatPrompts(None)
    with pytest.raises(RequestError, match="template"):
        ChatPrompts(byte_tokenizer())


def test_messages_that_cannot_be_rendered_are_the_requests_fault() -> None:
    with pytest.raises(RequestError):
        ChatPrompts(byte_tokenizer(), template=TEMPLATE).token_ids([])
