"""Fields of lines, good ones and their forms (tests/jobs/test_batch.py has the bad ones)."""

import json
from typing import Any

import pytest

from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.jobs.batch_input import InputLine
from jaxinfer.jobs.batch_request import (
    LineError,
    decode_line,
    line_seed,
    read_request,
    sampling_params,
)

MESSAGES = [{"role": "user", "content": "hi"}]


def line(value: Any, number: int = 1) -> InputLine:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return InputLine(position=0, file="in.jsonl", number=number, data=data, size=len(data))


def request(value: Any) -> Any:
    return read_request(decode_line(line(value), single_file=True), ["m"])


def test_plain_lines_get_an_id_from_their_place() -> None:
    assert decode_line(line({"prompt": "a"}, 17), single_file=True).custom_id == "line-17"
    named = decode_line(line({"prompt": "a"}, 17), single_file=False).custom_id
    assert named == "in.jsonl-line-17"


@pytest.mark.parametrize(
    ("body", "sampling"),
    [
        ({"prompt": "a", "stop": None, "top_k": 3}, {"top_k": 3}),
        ({"prompt": "a", "logprobs": 2}, {"logprobs": 2}),
        ({"messages": MESSAGES, "logprobs": False}, {}),
        ({"messages": MESSAGES, "logprobs": True}, {"logprobs": 0}),
        ({"messages": MESSAGES, "logprobs": True, "top_logprobs": 4}, {"logprobs": 4}),
        ({"messages": MESSAGES, "max_completion_tokens": 4}, {"max_tokens": 4}),
        ({"prompt": "a", "stream": False, "best_of": 1, "user": "x", "echo": False}, {}),
    ],
)
def test_fields_become_sampling_parameters(body: dict[str, Any], sampling: dict[str, Any]) -> None:
    assert request({"custom_id": "a", **body}).sampling == sampling
    url = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    whole = {"custom_id": "a", "method": "POST", "url": url, "body": {"model": "m", **body}}
    assert request(whole).sampling == sampling


def test_what_a_conversation_may_say_about_its_template() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    found = request({"messages": MESSAGES, "tools": tools, "continue_final_message": True})
    assert found.chat_options == {
        "tools": tools,
        "continue_final_message": True,
        "add_generation_prompt": False,
    }
    with pytest.raises(LineError, match="tools='f'"):
        request({"messages": MESSAGES, "tools": "f"})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("response_format", {"type": "json_object"}),
        ("tool_choice", "required"),
        ("best_of", 2),
        ("priority", "high"),
        ("max_completion_tokens", 3),
    ],
)
def test_what_is_not_done_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(LineError, match=field) as caught:
        request({"messages": MESSAGES, "max_tokens": 3, field: value})
    assert caught.value.code == "invalid_request"


def test_messages_are_bounded() -> None:
    with pytest.raises(LineError) as caught:
        request({"prompt": "a", "stream": "x" * 10_000})
    assert len(str(caught.value)) < 700


def test_lines_win_over_the_job_and_the_job_over_defaults() -> None:
    base = {"max_tokens": 16, "top_k": 5, "min_p": 0.5}
    found = sampling_params(
        request({"prompt": "a", "custom_id": "a", "temperature": 0.5}),
        base,
        {"temperature": 1.5, "top_k": 7},
        3,
    )
    assert (found.temperature, found.top_k, found.min_p, found.max_tokens) == (0.5, 7, 0.5, 16)
    assert found.seed == line_seed(3, "a")
    chat = sampling_params(request({"messages": MESSAGES}), base, {}, 0)
    assert chat.max_tokens is None
    assert sampling_params(request({"messages": MESSAGES}), base, {"max_tokens": 4}, 0).max_tokens
    assert isinstance(chat, SamplingParams)


def test_seeds_are_fixed_for_ever() -> None:
    """A job that is resumed with another version must draw what it drew."""
    assert line_seed(0, "a") == 3426483283761622585
    assert line_seed(0, "a") != line_seed(1, "a")


def test_prompts_that_begin_alike_sort_together() -> None:
    keys = [
        request({"messages": [{"role": "system", "content": s}, *MESSAGES]}).sort_key for s in "ba"
    ]
    assert keys == ["b\nhi", "a\nhi"]
    assert request({"prompt": [1, 22, 3]}).sort_key == "1,22,3"
