"""Tokenizers from GGUF metadata: llama.cpp's ids, token types, BOS rules, refusals."""

import time
from typing import Any

import numpy as np
import pytest

from jaxinfer.checkpoint.gguf_file import open_gguf
from jaxinfer.errors import CheckpointError, UnsupportedError
from jaxinfer.text.gguf_tokenizer import recover_merges, tokenizer_from_gguf
from jaxinfer.text.tokenizer import Tokenizer
from tests.support.demo import demo_path
from tests.support.gguf_tokenizers import (
    CONTROL,
    KEY,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    llama_cpp_ids,
    sentence_piece_metadata,
    smollm2_metadata,
)

BB12_TEXTS = ("a\n\nb", "\U0001f999.cpp", "a\tb\t\tc", "nul\x00\x01", "\U00020bb7野家", "  x   y ")


def built(metadata: dict[str, Any]) -> Tokenizer:
    tokenizer = tokenizer_from_gguf(metadata)
    assert tokenizer is not None
    return tokenizer


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    return built(smollm2_metadata())


@pytest.fixture(scope="module")
def gemma3() -> Tokenizer:
    metadata = open_gguf(demo_path("gemma3-270m")).metadata
    started = time.process_time()
    tokenizer = built(metadata)
    # Not quadratic in the 262,144 tokens: 1.3 to 2.6 s of this process, whoever else runs.
    assert time.process_time() - started < 15
    return tokenizer


def test_smollm2_ids_are_llama_cpps(smollm2: Tokenizer) -> None:
    for text, ids in llama_cpp_ids("smollm2"):
        assert smollm2.encode(text, add_special_tokens=False) == ids, repr(text)
        assert smollm2.decode(ids, skip_special_tokens=False) == text


def test_what_smollm2_says(smollm2: Tokenizer) -> None:
    assert (smollm2.vocab_size, smollm2.bos_token_id, smollm2.eos_token_ids) == (49152, 1, (2,))
    assert smollm2.encode("hi") == smollm2.encode("hi", add_special_tokens=False)
    assert "<|im_start|>" in smollm2.chat_templates["default"]
    assert smollm2.decode([1, 2, *smollm2.encode("hi"), 2]) == "hi"


@pytest.mark.weights
def test_the_smollm2_file_gives_the_stored_metadata() -> None:
    metadata = open_gguf(demo_path("smollm2-135m")).metadata
    for key, value in smollm2_metadata().items():
        assert list(metadata[key]) == value if isinstance(value, list) else metadata[key] == value


@pytest.mark.weights
def test_gemma3_ids_are_llama_cpps(gemma3: Tokenizer) -> None:
    for text, ids in llama_cpp_ids("gemma3"):
        assert gemma3.encode(text, add_special_tokens=False) == ids, repr(text)
        if "\u2581" not in text:  # the same ids as a space, so it cannot come back
            assert gemma3.decode(ids, skip_special_tokens=False) == text
    assert gemma3.encode("hi")[0] == gemma3.bos_token_id == 2
    assert gemma3.eos_token_ids == (1, 106)


@pytest.mark.weights
def test_gemma3_loses_no_character(gemma3: Tokenizer) -> None:
    """BB-12 (candle#3670, llama.cpp#9309, zml#37, ollama#15232, swift-transformers#387)."""
    for text in BB12_TEXTS:
        ids = gemma3.encode(text, add_special_tokens=False)
        assert gemma3.token_id("<unk>") not in ids
        assert gemma3.decode(ids) == text


@pytest.mark.parametrize("text", BB12_TEXTS)
def test_byte_pieces_instead_of_unknown(text: str) -> None:
    """BB-12, on a vocabulary of a few pieces."""
    tokenizer = built(sentence_piece_metadata("\u2581", "a", "b", add_space_prefix=False))
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert 0 not in ids and tokenizer.decode(ids) == text


def test_merges_missing() -> None:
    """BB-12: a gpt2-type file without merges is refused, the key named."""
    metadata = smollm2_metadata()
    del metadata[f"{KEY}merges"]
    with pytest.raises(CheckpointError, match=r"tokenizer\.ggml\.merges"):
        tokenizer_from_gguf(metadata)


def test_user_defined_tokens_are_one_id_and_stay_in_the_text() -> None:
    """BB-13 (transformers#49008, FreeToken#315)."""
    metadata = smollm2_metadata()
    metadata[f"{KEY}tokens"][16] = "<think>"
    metadata[f"{KEY}token_type"][16] = USER_DEFINED
    tokenizer = built(metadata)
    ids = tokenizer.encode("a<think>b<|im_end|>")
    assert ids.count(16) == 1 and len(ids) == 4
    assert tokenizer.decode(ids) == "a<think>b"


def test_an_ordinary_token_may_be_renamed() -> None:
    metadata = smollm2_metadata()
    metadata[f"{KEY}tokens"][49151] = "<think>"
    metadata[f"{KEY}token_type"][49151] = USER_DEFINED
    assert built(metadata).encode("<think>") == [49151]


def test_unused_tokens_have_no_text() -> None:
    metadata = smollm2_metadata()
    metadata[f"{KEY}tokens"].append("[PAD49152]")
    metadata[f"{KEY}token_type"].append(UNUSED)
    tokenizer = built(metadata)
    assert tokenizer.vocab_size == 49153
    assert tokenizer.decode([49152]) == ""


def test_arrays_may_be_numpy() -> None:
    metadata = sentence_piece_metadata("\u2581", "h", "i", "hi")
    expected = built(metadata).encode("hi hi")
    metadata[f"{KEY}scores"] = np.array(metadata[f"{KEY}scores"], np.float32)
    metadata[f"{KEY}token_type"] = np.array(metadata[f"{KEY}token_type"], np.int32)
    assert built(metadata).encode("hi hi") == expected


def test_the_better_score_joins_first() -> None:
    pieces = ("\u2581", "a", "b", "c", "bc", "ab")
    assert built(sentence_piece_metadata(*pieces)).encode("abc")[-2:] == [260, 263]
    assert recover_merges(["a", "b", "ab"], [NORMAL] * 3, [0.0] * 3) == [("a", "b")]
    assert recover_merges(["a", "b", "ab"], [NORMAL, NORMAL, CONTROL], [0.0] * 3) == []


def test_space_prefix() -> None:
    pieces = ("\u2581", "a")
    with_prefix = built(sentence_piece_metadata(*pieces, add_bos_token=False))
    assert with_prefix.encode("a a") == [259, 260, 259, 260]
    assert with_prefix.decode([259, 260, 259, 260]) == "a a"
    without = built(sentence_piece_metadata(*pieces, add_bos_token=False, add_space_prefix=False))
    assert without.encode("a a") == [260, 259, 260]


@pytest.mark.parametrize(
    ("keys", "around"),
    [
        ({}, ([1], [])),
        ({"add_bos_token": True}, ([1], [])),
        ({"add_bos_token": False}, ([], [])),
        ({"add_bos_token": False, "add_eos_token": True}, ([], [2])),
        ({"bos_token_id": 2}, ([2], [])),
    ],
)
def test_bos_and_eos_of_a_llama_file(
    keys: dict[str, Any], around: tuple[list[int], list[int]]
) -> None:
    tokenizer = built(sentence_piece_metadata("\u2581", "a", **keys))
    assert tokenizer.encode("a") == [*around[0], 259, 260, *around[1]]
    assert tokenizer.encode("a", add_special_tokens=False) == [259, 260]


@pytest.mark.parametrize(("pre", "adds"), [("llama-bpe", True), ("qwen2", False)])
def test_bos_of_a_byte_level_file_that_does_not_say(pre: str, adds: bool) -> None:
    metadata = smollm2_metadata() | {f"{KEY}pre": pre}
    del metadata[f"{KEY}add_bos_token"]
    assert (built(metadata).encode("hi")[0] == 1) == adds


def test_end_tokens() -> None:
    metadata = sentence_piece_metadata("a", "b", "<end_of_turn>", "<|im_end|>", eot_token_id=260)
    metadata[f"{KEY}token_type"][261] = CONTROL  # the other one is ordinary text
    assert built(metadata).eos_token_ids == (2, 260, 261)


@pytest.mark.parametrize(("others", "ends"), [((), (2, 260)), (("<|return|>",), (2, 261))])
def test_the_end_of_a_phi3_s_turn(others: tuple[str, ...], ends: tuple[int, ...]) -> None:
    """`<|end|>` closes only a part of a turn where a vocabulary has `<|return|>` too."""
    metadata = sentence_piece_metadata("a", "<|end|>", *others)
    metadata[f"{KEY}token_type"][260:] = [CONTROL] * (1 + len(others))
    assert built(metadata).eos_token_ids == ends


def test_named_chat_templates() -> None:
    metadata = sentence_piece_metadata("a")
    metadata |= {"tokenizer.chat_template": "D", "tokenizer.chat_template.tool_use": "U"}
    assert built(metadata).chat_templates == {"default": "D", "tool_use": "U"}


@pytest.mark.parametrize("metadata", [{}, {f"{KEY}model": "none"}])
def test_no_tokenizer(metadata: dict[str, Any]) -> None:
    assert tokenizer_from_gguf(metadata) is None


@pytest.mark.parametrize("pre", ["brand-new", None, 5])
def test_an_unknown_pre_is_refused_by_name(pre: object) -> None:
    with pytest.raises(UnsupportedError, match=rf"tokenizer\.ggml\.pre={pre!r}"):
        tokenizer_from_gguf(smollm2_metadata() | {f"{KEY}pre": pre})


def test_another_kind_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="'t5'"):
        tokenizer_from_gguf({f"{KEY}model": "t5"})


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"tokens": None}, "tokens"),
        ({"tokens": []}, "tokens"),
        ({"tokens": ["a"] * 260}, "'a'"),
        ({"scores": [0.0]}, "scores"),
        ({"token_type": [1, 1]}, "token_type"),
        ({"bos_token_id": 10**6}, "bos_token_id"),
        ({"eos_token_id": -1}, "eos_token_id"),
    ],
)
def test_keys_that_do_not_fit(keys: dict[str, Any], named: str) -> None:
    metadata = sentence_piece_metadata("a") | {KEY + name: value for name, value in keys.items()}
    with pytest.raises(CheckpointError, match=named):
        tokenizer_from_gguf(metadata)


def test_bos_wanted_but_not_named() -> None:
    metadata = smollm2_metadata() | {f"{KEY}add_bos_token": True}
    del metadata[f"{KEY}bos_token_id"]
    with pytest.raises(CheckpointError, match="add_bos_token"):
        tokenizer_from_gguf(metadata)


def test_a_merge_that_is_no_pair() -> None:
    with pytest.raises(CheckpointError, match=r"merges\[0\]='x'"):
        tokenizer_from_gguf(smollm2_metadata() | {f"{KEY}merges": ["x"]})
