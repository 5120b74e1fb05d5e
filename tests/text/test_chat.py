"""Rendering conversations: transformers' text, refusals, prefilled turns, one BOS."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxinfer.errors import ConfigError, RequestError
from jaxinfer.text.chat import ChatTemplate, render_chat
from tests.support.byte_tokenizer import BOS, BOS_TEXT, END, END_TEXT, byte_tokenizer
from tests.support.gguf_tokenizers import smollm2_metadata
from tests.text import chat_templates

RENDERINGS = Path(__file__).parents[1] / "data" / "chat" / "renderings.json"
CASES = json.loads(RENDERINGS.read_text(encoding="utf-8"))["cases"]
USER = [{"role": "user", "content": "hi"}]
PREFILLED = [*USER, {"role": "assistant", "content": "The answer is "}]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["template"])
def test_text_is_transformers(case: dict[str, Any]) -> None:
    """BB-15, BB-16: frozen renderings of transformers 5.24."""
    options = {"add_generation_prompt": False, **case["options"]}
    template = getattr(chat_templates, case["template"])
    text = render_chat(
        template, case["messages"], bos_token=BOS_TEXT, eos_token=END_TEXT, **options
    )
    assert text == case["text"]


def test_the_smollm2_template() -> None:
    template = ChatTemplate(smollm2_metadata()["tokenizer.chat_template"])
    assert template.render(USER) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert template.render(PREFILLED, add_generation_prompt=False).endswith("is <|im_end|>\n")


def test_the_templates_own_refusal() -> None:
    """BB-15: the rejection has the template's own message."""
    messages = [{"role": "system", "content": "s"}, *USER]
    with pytest.raises(RequestError, match="System role not supported"):
        render_chat(chat_templates.REFUSES_SYSTEM, messages)
    with pytest.raises(RequestError, match="must alternate user/assistant, not user"):
        render_chat(chat_templates.EVERYTHING, USER * 2)


@pytest.mark.parametrize("name", ["CHATML", "TRIMS", "LOOPS_OR_TEXT", "LOOPS_ONLY", "BOS_FIRST"])
@pytest.mark.parametrize("as_parts", [False, True])
def test_a_prefilled_turn_ends_the_prompt(name: str, as_parts: bool) -> None:
    """BB-16: exactly the prefill at the end, its space included, no end marker."""
    messages = PREFILLED
    if as_parts:
        last = {"role": "assistant", "content": [{"type": "text", "text": "The answer is "}]}
        messages = [*USER, last]
    text = render_chat(
        getattr(chat_templates, name),
        messages,
        add_generation_prompt=False,
        continue_final_message=True,
    )
    assert text.endswith("The answer is ") and "hi" in text
    assert messages[1]["content"] in (
        "The answer is ",
        [{"type": "text", "text": "The answer is "}],
    )


def test_a_prefill_that_holds_the_mark_itself() -> None:
    messages = [*USER, {"role": "assistant", "content": "ENDOFPREFILL0X and on"}]
    text = render_chat(
        chat_templates.CHATML, messages, add_generation_prompt=False, continue_final_message=True
    )
    assert text.endswith("ENDOFPREFILL0X and on")


def test_both_flags() -> None:
    """BB-16: a ValueError."""
    with pytest.raises(ValueError, match="continue_final_message"):
        render_chat(chat_templates.CHATML, PREFILLED, continue_final_message=True)
    with pytest.raises(ConfigError):
        render_chat(chat_templates.CHATML, PREFILLED, continue_final_message=True)


def test_nothing_to_continue() -> None:
    options: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
    empty = [{"role": "assistant", "content": None, "tool_calls": [{}]}]
    with pytest.raises(RequestError, match="text to continue"):
        render_chat("x", empty, **options)
    with pytest.raises(RequestError, match="does not print"):
        render_chat("x", PREFILLED, **options)


def test_parts_for_a_text_template() -> None:
    """BB-16: the ids of "a\\nb"."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert render_chat(chat_templates.CHATML, [{"role": "user", "content": parts}]) == render_chat(
        chat_templates.CHATML, [{"role": "user", "content": "a\nb"}]
    )
    with pytest.raises(RequestError, match="image"):
        render_chat(chat_templates.CHATML, [{"role": "user", "content": [{"type": "image"}]}])


def test_exactly_one_bos() -> None:
    """BB-14: a rendered chat, encoded without additions or as a plain prompt."""
    tokenizer = byte_tokenizer(adds_bos=True)
    text = render_chat(chat_templates.BOS_FIRST, USER, bos_token=tokenizer.bos_token)
    ids = [BOS, *b"[user]hi[assistant]"]
    assert tokenizer.encode(text, add_special_tokens=False) == ids == tokenizer.encode(text)
    text = render_chat(chat_templates.WITHOUT_BOS, USER, bos_token=tokenizer.bos_token)
    assert tokenizer.encode(text, add_special_tokens=False) == ids[1:]
    assert tokenizer.encode(text) == ids


def test_markers_in_user_text_become_control_tokens() -> None:
    """BB-18 (transformers#29279, tokenizers#1347, gemma#768): as the field's engines do."""
    messages = [{"role": "user", "content": f"a{END_TEXT}b"}]
    text = render_chat(chat_templates.WITHOUT_BOS, messages, add_generation_prompt=False)
    assert byte_tokenizer().encode(text, add_special_tokens=False) == [*b"[user]a", END, *b"b"]


def test_a_missing_special_token_prints_nothing() -> None:
    assert render_chat("{{ bos_token }}{{ eos_token }}x", USER) == "x"


def test_extra_variables() -> None:
    template = "{{ enable_thinking }} {{ messages[0].content }} {{ tools is none }}"
    extra = {"enable_thinking": False, "messages": [], "add_generation_prompt": 5}
    assert render_chat(template, USER, extra_kwargs=extra) == "False hi True"


@pytest.mark.parametrize(
    ("template", "named"),
    [
        ("{% for %}", "line 1"),
        ("\n{{ x", "line 2"),
        ("{{ missing.attribute }}", "missing"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("x" * (2**20 + 1), "1048577"),
        ("{{ messages[0].content + 5 }}", "TypeError"),
    ],
)
def test_templates_that_fail(template: str, named: str) -> None:
    with pytest.raises(RequestError, match=named):
        render_chat(template, USER)
