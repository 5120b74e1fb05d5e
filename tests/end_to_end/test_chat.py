"""Chats end to end: one BOS, forms of content, continued messages, refused conversations."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxinfer import LLM, SamplingParams
from jaxinfer.errors import RequestError
from tests.end_to_end.conftest import OpenLLM
from tests.end_to_end.engines import GREEDY, assert_drained, bits, ids, run
from tests.support.byte_tokenizer import BOS, BOS_TEXT, byte_tokenizer

TURNS = (
    "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}<end>{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
PARTS = (
    "{% for m in messages %}{% for p in m['content'] %}[{{ p['text'] }}]{% endfor %}{% endfor %}"
)
REFUSING = "{{ raise_exception('no system role') }}"
WITH_TOOLS = (
    "{{ mark }}{% for t in tools or [] %}{{ t.function.name }};{% endfor %}"
    + "{{ messages[0].content }}"
)
TEMPLATES = {
    "with_tools": WITH_TOOLS,
    "default": TURNS,
    "with_bos": "{{ bos_token }}" + TURNS,
    "parts": PARTS,
}
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def llm(open_llm: OpenLLM, tiny_folder: Path) -> Iterator[LLM]:
    tokenizer = byte_tokenizer(adds_bos=True, chat_templates=TEMPLATES)
    with open_llm(tiny_folder, max_num_seqs=8, tokenizer=tokenizer) as opened:
        yield opened
        assert_drained(opened)


def chat(llm: LLM, messages: Any, params: SamplingParams = GREEDY, **options: Any) -> Any:
    return llm.chat(messages, params, use_tqdm=False, **options)


def prompt_text(llm: LLM, messages: Any, **options: Any) -> str:
    """The prompt of one conversation, as text with its special tokens."""
    (output,) = chat(llm, messages, **options)
    assert output.error is None, output.error
    tokenizer = llm.get_tokenizer()
    assert tokenizer is not None
    return tokenizer.decode(output.prompt_token_ids, skip_special_tokens=False)


def test_exactly_one_bos(llm: LLM) -> None:
    """BB-14 (vllm#55197, llama-cpp-python#1439), promise 12: by template, tokenizer, or both."""
    (output,) = chat(llm, HI, chat_template="with_bos")
    rendered = f"{BOS_TEXT}user:hi<end>assistant:"
    tokenizer = llm.get_tokenizer()
    assert tokenizer is not None
    assert output.prompt_token_ids == tokenizer.encode(rendered, add_special_tokens=False)
    assert output.prompt_token_ids.count(BOS) == 1
    (generated,) = run(llm, [rendered])
    assert generated.prompt_token_ids == output.prompt_token_ids
    assert bits(generated) == bits(output)
    (plain,) = run(llm, ["plain"])
    assert plain.prompt_token_ids == [BOS, *b"plain"]
    assert BOS not in chat(llm, HI)[0].prompt_token_ids  # a template that writes none gets none


def test_text_parts_are_joined_for_a_template_of_strings(llm: LLM) -> None:
    """BB-16 (vllm#9358)."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    joined = prompt_text(llm, [{"role": "user", "content": parts}])
    assert joined == prompt_text(llm, [{"role": "user", "content": "a\nb"}])
    listed = prompt_text(llm, [{"role": "user", "content": parts}], chat_template="parts")
    assert listed == "[a][b]"


def test_an_image_is_that_row_s_error(llm: LLM) -> None:
    """BB-16: the other conversations go on."""
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    first, bad, third = chat(llm, [HI, image, HI])
    assert bad.error is not None and "image_url" in bad.error and "messages[0]" in bad.error
    assert bad.outputs[0].finish_reason == "error"
    (alone,) = chat(llm, HI)
    assert bits(first) == bits(third) == bits(alone)


def test_a_continued_message_is_left_open(llm: LLM) -> None:
    """BB-16 (verifiers#179): no end marker, trailing blank kept."""
    messages = [*HI, {"role": "assistant", "content": "The answer is "}]
    text = prompt_text(llm, messages, add_generation_prompt=False, continue_final_message=True)
    assert text == "user:hi<end>assistant:The answer is "


def test_tools_and_variables_reach_the_template(llm: LLM) -> None:
    """A template of its own where there are tools; more variables for any."""
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    plain = prompt_text(llm, HI, chat_template="with_tools", chat_template_kwargs={"mark": "!"})
    assert plain == "!hi"
    shown = prompt_text(llm, HI, chat_template="with_tools", tools=tools)
    assert shown == "add;hi"


def test_two_flags_that_contradict_raise(llm: LLM) -> None:
    """BB-16."""
    with pytest.raises(ValueError, match="set one .*to False"):
        chat(llm, HI, add_generation_prompt=True, continue_final_message=True)


def test_a_template_s_refusal_is_that_row_s_error(llm: LLM) -> None:
    """BB-15: with the template's own words."""
    (output,) = chat(llm, HI, chat_template=REFUSING)
    assert output.error is not None and "no system role" in output.error


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "at least one message"),
        ([[]], "at least one message"),
        ([{"content": "x"}], "role"),
        ([{"role": "user"}], "content is missing"),
        ([{"role": "user", "content": 5}], "int"),
        ("hi", "list of dicts"),
        ({"role": "user", "content": "x"}, "list of dicts"),
        (None, "list of dicts"),
        (5, "list of dicts"),
    ],
)
def test_what_is_no_conversation_is_a_row_with_an_error(
    llm: LLM, messages: Any, words: str
) -> None:
    """BB-29: chat([]) among them."""
    (output,) = chat(llm, messages)
    assert output.error is not None and words in output.error
    with pytest.raises(RequestError, match=words):
        list(llm.chat_stream(messages if messages != [[]] else []))


def test_conversations_are_answered_in_order(llm: LLM) -> None:
    asked = [[{"role": "user", "content": text}] for text in ("a", "bb", "ccc")]
    together = chat(llm, asked)
    assert [bits(output) for output in together] == [bits(chat(llm, one)[0]) for one in asked]


def test_a_chat_stream_joins_to_the_answer(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, seed=2, max_tokens=12, ignore_eos=True)
    (output,) = chat(llm, HI, params)
    deltas = list(llm.chat_stream(HI, params))
    assert "".join(delta.text for delta in deltas) == output.outputs[0].text
    assert sum((delta.token_ids for delta in deltas), []) == ids([output])[0]


def test_a_chat_that_is_too_long_is_refused(llm: LLM) -> None:
    long = [{"role": "user", "content": "x" * 300}]
    (output,) = chat(llm, long)
    assert output.error is not None and "256" in output.error
    with pytest.raises(RequestError, match="256"):
        list(llm.chat_stream(long))
