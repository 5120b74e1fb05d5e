"""Encoding, decoding, special tokens and BOS; tokenizers of folders."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from jaxinfer.errors import CheckpointError, RequestError, UnsupportedError
from jaxinfer.text.tokenizer import Tokenizer as JaxInferTokenizer
from jaxinfer.text.tokenizer import tokenizer_from_folder
from tests.support.byte_tokenizer import (
    BOS,
    BOS_TEXT,
    END,
    END_TEXT,
    byte_backend,
    byte_tokenizer,
    save_byte_tokenizer,
)

BYTE = byte_tokenizer()


def loaded(folder: Path) -> JaxInferTokenizer:
    tokenizer = tokenizer_from_folder(folder)
    assert tokenizer is not None
    return tokenizer


@settings(deadline=None)
@given(st.text())
def test_decode_undoes_encode(prompt: str) -> None:
    assert BYTE.decode(BYTE.encode(prompt), skip_special_tokens=False) == prompt
    assert BYTE.encode(prompt.replace("<", "")) == list(prompt.replace("<", "").encode())


@settings(deadline=None)
@given(st.lists(st.integers(0, 259)))
def test_decode_equals_the_librarys(ids: list[int]) -> None:
    for skip in (True, False):
        assert BYTE.decode(ids, skip_special_tokens=skip) == BYTE.backend.decode(
            ids, skip_special_tokens=skip
        )


def test_what_a_tokenizer_says_of_itself() -> None:
    assert (BYTE.vocab_size, BYTE.bos_token_id, BYTE.eos_token_ids) == (258, BOS, (END,))
    assert BYTE.special_ids == {END, BOS}
    assert (BYTE.token_id(END_TEXT), BYTE.token_text(END)) == (END, END_TEXT)


def test_ids_beyond_the_list_have_no_text() -> None:
    """BB-27 (vllm#340, pegainfer#673, llama.cpp#5910): a padded row of the head is chosen."""
    assert BYTE.decode([72, 300, 105, 10**6, -1]) == "Hi"
    assert BYTE.token_bytes(300) == b"" and BYTE.token_text(300) == ""


def test_numpy_ids() -> None:
    ids = np.array([72, END, 105], np.int32)
    assert BYTE.decode(ids) == "Hi"
    assert BYTE.decode(ids, skip_special_tokens=False) == "H<end>i"


def test_vocab_size_is_past_the_largest_id_where_ids_have_gaps() -> None:
    backend = Tokenizer(models.WordLevel({"a": 0, "b": 7}, unk_token="a"))
    assert JaxInferTokenizer(backend).vocab_size == 8


def test_exactly_one_bos() -> None:
    """BB-14 (vllm#55197, #27486, #2012, llama-cpp-python#1439)."""
    adds = byte_tokenizer(adds_bos=True)
    assert adds.encode("plain") == [BOS, *b"plain"]
    assert adds.encode("") == [BOS]
    assert adds.encode(f"{BOS_TEXT}rendered") == [BOS, *b"rendered"]
    assert adds.encode("plain", add_special_tokens=False) == [*b"plain"]
    assert adds.encode(f"{BOS_TEXT}x", add_special_tokens=False) == [BOS, *b"x"]
    assert BYTE.encode(f"{BOS_TEXT}x") == [BOS, *b"x"]


@pytest.mark.parametrize("prompt", ["a\ud800", 5, None, b"x"])
def test_what_has_no_utf8_form_is_the_requests_fault(prompt: object) -> None:
    with pytest.raises(RequestError, match="prompt"):
        BYTE.encode(prompt)  # type: ignore[arg-type]


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path) -> None:
    backend = byte_backend()
    backend.enable_truncation(3)
    backend.enable_padding(length=9)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert loaded(tmp_path).encode("abcdef") == [*b"abcdef"]


def test_sentence_piece_like_text() -> None:
    vocabulary = {"<unk>": 0, "<0xE2>": 1, "<0x82>": 2, "<0xAC>": 3, "\u2581a": 4, "b": 5}
    backend = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer = JaxInferTokenizer(backend)
    assert tokenizer.decode([4, 5, 1, 2, 3, 4]) == "ab€ a" == backend.decode([4, 5, 1, 2, 3, 4])
    assert tokenizer.decode([5, 4]) == "b a"


def test_metaspace_and_no_decoder() -> None:
    backend = Tokenizer(models.WordLevel({"\u2581a": 0, "\u2581b": 1}, unk_token="\u2581a"))
    backend.decoder = decoders.Metaspace()
    assert JaxInferTokenizer(backend).decode([0, 1]) == "a b" == backend.decode([0, 1])
    plain = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    assert JaxInferTokenizer(plain).decode([0, 1, 9]) == "a b" == plain.decode([0, 1])


def test_added_tokens_that_are_not_special_stay() -> None:
    """BB-13 (transformers#49008, FreeToken#315), for a tokenizer.json."""
    backend = byte_backend()
    backend.add_tokens([AddedToken("<thé nk>", special=False, normalized=False)])
    tokenizer = JaxInferTokenizer(backend)
    ids = tokenizer.encode("a<thé nk>b")
    assert ids == [*b"a", 258, *b"b"]
    assert tokenizer.decode(ids) == "a<thé nk>b"


def test_a_folder(tmp_path: Path) -> None:
    save_byte_tokenizer(tmp_path, adds_bos=True, chat_template="T")
    tokenizer = loaded(tmp_path)
    assert tokenizer.encode("hi") == [BOS, *b"hi"]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (BOS, (END,))
    assert tokenizer.special_tokens == {"bos_token": BOS_TEXT, "eos_token": END_TEXT}
    assert tokenizer.chat_templates == {"default": "T"}


def test_special_tokens_as_objects_and_in_the_map_file(tmp_path: Path) -> None:
    byte_backend().save(str(tmp_path / "tokenizer.json"))
    content = {"eos_token": {"content": END_TEXT, "lstrip": False}, "pad_token": "a"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(content), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text('{"pad_token": null}', encoding="utf-8")
    tokenizer = loaded(tmp_path)
    assert tokenizer.eos_token_ids == (END,)
    assert tokenizer.special_tokens == {"eos_token": END_TEXT}


def test_tokens_that_only_the_config_calls_special(tmp_path: Path) -> None:
    backend = byte_backend()
    backend.add_tokens(["<turn>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    content = {"additional_special_tokens": ["<turn>", {"content": "<not there>"}]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(content), encoding="utf-8")
    tokenizer = loaded(tmp_path)
    assert tokenizer.vocab_size == 259
    assert tokenizer.decode(tokenizer.encode("a<turn>b")) == "ab"


@pytest.mark.parametrize(
    ("name", "adds_bos", "explicit", "expected"),
    [
        ("LlamaTokenizerFast", False, True, [BOS, *b"x"]),
        ("LlamaTokenizer", True, False, [*b"x"]),
        ("GemmaTokenizerFast", False, True, [BOS, *b"x"]),
        ("PreTrainedTokenizerFast", True, False, [BOS, *b"x"]),
        ("Qwen2Tokenizer", False, True, [*b"x"]),
    ],
)
def test_add_bos_token_counts_for_the_classes_that_obey_it(
    tmp_path: Path, name: str, adds_bos: bool, explicit: bool, expected: list[int]
) -> None:
    save_byte_tokenizer(tmp_path, adds_bos=adds_bos, tokenizer_class=name, add_bos_token=explicit)
    assert loaded(tmp_path).encode("x") == expected


def test_add_eos_token(tmp_path: Path) -> None:
    save_byte_tokenizer(tmp_path, tokenizer_class="LlamaTokenizer", add_eos_token=True)
    assert loaded(tmp_path).encode("x") == [BOS, *b"x", END]


def test_a_folder_without_any_tokenizer(tmp_path: Path) -> None:
    assert tokenizer_from_folder(tmp_path) is None


@pytest.mark.parametrize("name", ["tokenizer.model", "vocab.json", "tekken.json"])
def test_a_tokenizer_in_another_format_only(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(UnsupportedError, match="save_pretrained"):
        tokenizer_from_folder(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": {"type": "no"}}'])
def test_a_damaged_tokenizer_json(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        tokenizer_from_folder(tmp_path)


@pytest.mark.parametrize("content", ["{", "[1]", '"x"'])
def test_a_damaged_config(tmp_path: Path, content: str) -> None:
    save_byte_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json"):
        tokenizer_from_folder(tmp_path)


def test_a_decoder_of_another_kind(tmp_path: Path) -> None:
    backend = byte_backend()
    backend.decoder = decoders.WordPiece()
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UnsupportedError, match="WordPiece"):
        tokenizer_from_folder(tmp_path)


def test_a_normalizer_before_the_bos_check() -> None:
    backend = byte_backend(adds_bos=True)
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = JaxInferTokenizer(backend, special_tokens={"bos_token": BOS_TEXT})
    assert tokenizer.encode(f"{BOS_TEXT}AB") == [BOS, *b"ab"]
