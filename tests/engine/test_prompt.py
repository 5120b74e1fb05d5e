"""What may be a prompt, and the message of everything that may not."""

from typing import Any

import numpy as np
import pytest

from jaxinfer.engine.prompt import TokenPrompt, read_prompt
from jaxinfer.errors import RequestError
from jaxinfer.text.tokenizer import Tokenizer
from tests.support.byte_tokenizer import BOS, byte_tokenizer


def read(prompt: Any, tokenizer: Tokenizer | None, max_model_len: int = 8) -> TokenPrompt:
    return read_prompt(prompt, tokenizer, vocab_size=300, max_model_len=max_model_len)


@pytest.mark.parametrize("prompt", ["abc", {"prompt": "abc"}])
def test_text(tokenizer: Tokenizer, prompt: Any) -> None:
    assert read(prompt, tokenizer) == TokenPrompt(text="abc", token_ids=[97, 98, 99])


@pytest.mark.parametrize(
    "prompt",
    [
        *([97, 98], (97, 98), range(97, 99), {"prompt_token_ids": [97, 98]}),
        *(np.array([97, 98]), np.array([97, 98], np.int32), [np.int64(97), 98]),
    ],
)
def test_token_ids(prompt: Any) -> None:
    found = read(prompt, None)
    assert found == TokenPrompt(text=None, token_ids=[97, 98])
    assert [type(token) for token in found.token_ids] == [int, int]


@pytest.mark.parametrize(
    "prompt",
    [
        *(None, 5, 1.5, b"abc", bytearray(b"abc"), {1, 2}, object(), np.int64(5)),
        *({"prompt": None}, {"prompt_token_ids": 5}, {"prompt": b"abc"}),
    ],
)
def test_another_type_is_named(tokenizer: Tokenizer, prompt: Any) -> None:
    with pytest.raises(RequestError, match="is a .*; pass a str, a list of token ids"):
        read(prompt, tokenizer)


def test_text_in_place_of_ids_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="prompt_token_ids='abc' is a str"):
        read({"prompt_token_ids": "abc"}, tokenizer)


@pytest.mark.parametrize(
    "prompt", [{}, {"text": "a"}, {"prompt": "a", "prompt_token_ids": [1]}, {5: "a"}]
)
def test_a_mapping_has_exactly_one_key(tokenizer: Tokenizer, prompt: Any) -> None:
    with pytest.raises(RequestError, match="must have exactly one of 'prompt' and 'prompt_token"):
        read(prompt, tokenizer)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([1, 300], r"prompt_token_ids\[1\]=300 is outside the vocabulary of 300 .* 0 to 299"),
        ([-1], r"prompt_token_ids\[0\]=-1 is outside"),
        ([1, "a"], r"prompt_token_ids\[1\]='a' is a str, must be an int"),
        ([1.0], r"prompt_token_ids\[0\]=1.0 is a float"),
        ([True], r"prompt_token_ids\[0\]=True is a bool"),
        ([[1, 2]], r"prompt_token_ids\[0\]=\[1, 2\] is a list"),
        (np.array([[1, 2]]), r"prompt_token_ids\[0\]=\[1, 2\] is a list"),
        (["ab"], r"prompt_token_ids\[0\]='ab' is a str"),
    ],
)
def test_a_wrong_id_is_named_with_its_place(prompt: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        read(prompt, None)


@pytest.mark.parametrize("prompt", [[], "", {"prompt": ""}, np.array([], np.int32)])
def test_nothing_is_refused(tokenizer: Tokenizer, prompt: Any) -> None:
    """BB-29 (vllm#7283)."""
    if isinstance(prompt, list | np.ndarray):
        with pytest.raises(RequestError, match="the prompt has no tokens"):
            read(prompt, None)
        return
    without_bos = byte_tokenizer()
    without_bos.bos_token_id = None
    with pytest.raises(RequestError, match="the prompt has no tokens"):
        read(prompt, without_bos)


def test_empty_text_starts_from_bos() -> None:
    """BB-29: with a BOS tokenizer an empty prompt begins at BOS, once."""
    assert read("", byte_tokenizer(adds_bos=True)).token_ids == [BOS]
    assert read("", byte_tokenizer()).token_ids == [BOS]


def test_the_longest_prompt_is_the_model_s_length() -> None:
    """BB-30 (vllm#1655): exactly max_model_len passes, one more names both numbers."""
    assert len(read([1] * 8, None).token_ids) == 8
    with pytest.raises(RequestError, match="has 9 tokens, max_model_len allows 8; shorten it"):
        read([1] * 9, None)


def test_text_without_a_tokenizer_asks_for_ids() -> None:
    with pytest.raises(RequestError, match="prompt='abc': the checkpoint has no tokenizer"):
        read("abc", None)


def test_a_lone_surrogate_is_one_request_s_fault(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="lone surrogate"):
        read("a\ud800", tokenizer)
