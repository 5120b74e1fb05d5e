"""The cuts of byte-level BPE families: each compiles, loses nothing, and cuts as it should."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.text.pretokenizers import PRE_TOKENIZATIONS, byte_level_pre_tokenizer

FAMILIES = sorted({family.splits for family in PRE_TOKENIZATIONS.values()})


def cut(name: str, text: str) -> list[str]:
    pre_tokenizer = byte_level_pre_tokenizer(PRE_TOKENIZATIONS[name].splits)
    return [text[start:end] for _, (start, end) in pre_tokenizer.pre_tokenize_str(text)]


@settings(deadline=None)
@given(st.text(max_size=40))
def test_no_cut_loses_a_character(text: str) -> None:
    for splits in FAMILIES:
        pieces = byte_level_pre_tokenizer(splits).pre_tokenize_str(text)
        assert "".join(text[start:end] for _, (start, end) in pieces) == text


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        ("gpt-2", "it's 1234", ["it", "'s", " 1234"]),
        ("smollm", "it's  1234", ["it", "'s", "  ", "1", "2", "3", "4"]),
        ("llama-bpe", "IT'S 12345\n", ["IT", "'S", " ", "123", "45", "\n"]),
        ("qwen2", "x 123", ["x", " ", "1", "2", "3"]),
        ("tekken", "CamelCase 12", ["Camel", "Case", " ", "1", "2"]),
        ("gpt-4o", "CamelCase's 1234", ["Camel", "Case's", " ", "123", "4"]),
        ("deepseek-llm", "ab 日本 ١٢\n", ["ab", " ", "日本", " ", "١٢", "\n"]),
        ("deepseek-coder", "ab, 12", ["ab", ",", " ", "1", "2"]),
        ("deepseek-v3", "ab日本1234", ["ab", "日本", "123", "4"]),
        ("falcon", "a1234`b", ["a", "123", "4", "`", "b"]),
        ("bloom", "one, two", ["one", ",", " two"]),
        ("default", "a1234,b", ["a", "123", "4", ",", "b"]),
    ],
)
def test_cuts(name: str, text: str, pieces: list[str]) -> None:
    assert cut(name, text) == pieces


def test_letters_with_and_without_case_for_deepseek() -> None:
    assert cut("deepseek-llm", "x πЖé") == ["x", " πЖé"]
    assert cut("deepseek-llm", "πא") == ["π", "א"]


def test_habits_that_come_with_a_name() -> None:
    assert PRE_TOKENIZATIONS["llama-bpe"].adds_bos and PRE_TOKENIZATIONS["llama-bpe"].ignores_merges
    assert PRE_TOKENIZATIONS["tekken"].adds_bos
    assert not PRE_TOKENIZATIONS["qwen2"].adds_bos
    assert not PRE_TOKENIZATIONS["smollm"].ignores_merges
