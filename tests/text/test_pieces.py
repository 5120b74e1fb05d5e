"""The bytes of single ids, by kind of decoder."""

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from jaxinfer.errors import UnsupportedError
from jaxinfer.text.pieces import PieceRule, TokenPieces, rule_of_decoder
from tests.support.byte_tokenizer import byte_backend


def backend_with(decoder: object, *tokens: str) -> Tokenizer:
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    if decoder is not None:
        backend.decoder = decoder  # type: ignore[assignment]
    return backend


def test_every_byte_of_the_byte_level_alphabet() -> None:
    pieces = TokenPieces(byte_backend())
    assert [pieces.token_bytes(byte) for byte in range(256)] == [bytes([b]) for b in range(256)]


def test_a_token_outside_the_alphabet_is_its_own_text() -> None:
    pieces = TokenPieces(backend_with(decoders.ByteLevel(), "a b", "\u0120x", "日"))
    assert [pieces.token_bytes(i) for i in range(3)] == [b"a b", b" x", "日".encode()]


def test_byte_tokens_only_with_byte_fallback() -> None:
    tokens = ("<0x41>", "<0xe2>", "<0x4>", "\u2581x\u2581")
    mark = decoders.Replace("\u2581", " ")
    with_bytes = TokenPieces(
        backend_with(decoders.Sequence([mark, decoders.ByteFallback()]), *tokens)
    )
    assert [with_bytes.token_bytes(i) for i in range(4)] == [b"A", b"\xe2", b"<0x4>", b" x "]
    without = TokenPieces(backend_with(mark, *tokens))
    assert without.token_bytes(0) == b"<0x41>"


def test_the_mark_stays_in_special_tokens_only() -> None:
    backend = backend_with(decoders.Replace("\u2581", " "), "a")
    backend.add_special_tokens([AddedToken("<\u2581s>", special=True)])
    backend.add_tokens([AddedToken("\u2581\u2581", special=False)])
    pieces = TokenPieces(backend, silent_ids=[0])
    assert pieces.token_bytes(0) == b""
    assert pieces.token_bytes(1) == "<\u2581s>".encode()
    assert pieces.token_bytes(2) == b"  "


@pytest.mark.parametrize(
    ("decoder", "rule"),
    [
        (None, PieceRule(form="text", separator=" ")),
        (decoders.ByteLevel(), PieceRule(form="bytes")),
        (decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()]), PieceRule(form="bytes")),
        (
            decoders.Metaspace(prepend_scheme="never"),
            PieceRule(form="text", replacements=(("\u2581", " "),)),
        ),
    ],
)
def test_rules(decoder: object, rule: PieceRule) -> None:
    assert rule_of_decoder(backend_with(decoder, "a")) == rule


@pytest.mark.parametrize(
    "decoder", [decoders.CTC(), decoders.BPEDecoder(), decoders.Strip(" ", 0, 1)]
)
def test_other_decoders_are_refused_by_name(decoder: object) -> None:
    with pytest.raises(UnsupportedError, match=type(decoder).__name__):
        rule_of_decoder(backend_with(decoder, "a"))
