"""HOST. The bytes that every token id stands for: any ids become text in linear time.

Text is the concatenation of the ids' bytes, read as UTF-8 with replacement marks where bytes are
invalid. The rule for one id comes from the decoder of the `tokenizers.Tokenizer`: byte-level,
SentencePiece-like (U+2581 for a space, `<0xNN>` for a byte), or none (tokens joined by spaces).
Knows nothing of chat, stop strings or checkpoints.
"""

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

import tokenizers

from jaxinfer.errors import UnsupportedError

SPACE_MARK = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_of_char() -> dict[str, int]:
    """The byte-level alphabet: printable bytes stand for themselves, others for U+0100 and up."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [byte for byte in range(256) if byte not in plain]
    table = {chr(byte): byte for byte in plain}
    return table | {chr(256 + index): byte for index, byte in enumerate(shifted)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceRule:
    """How a decoder turns one token into bytes.

    form: what the text of an ordinary token is written in.
    replacements: (from, to) pairs applied to it in order; only for form "text".
    byte_fallback: `<0xNN>` is one byte.
    strips_first_space: one space at the very start of a text is dropped.
    separator: what stands between two tokens.
    """

    form: Literal["bytes", "text"]
    replacements: tuple[tuple[str, str], ...] = ()
    byte_fallback: bool = False
    strips_first_space: bool = False
    separator: str = ""


def rule_of_decoder(backend: tokenizers.Tokenizer) -> PieceRule:
    """The rule that the decoder of a `tokenizers.Tokenizer` follows.

    Raises:
        UnsupportedError: a decoder of another kind; the message names it.
    """
    decoder = backend.decoder
    if decoder is None:
        return PieceRule(form="text", separator=" ")
    steps = _flatten(json.loads(decoder.__getstate__()))
    if any(step["type"] == "ByteLevel" for step in steps):
        _refuse_unknown(steps, {"ByteLevel", "Fuse"})
        return PieceRule(form="bytes")
    return _text_rule(steps)


def _text_rule(steps: list[dict[str, Any]]) -> PieceRule:
    _refuse_unknown(steps, {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"})
    replacements, strips = [], False
    for step in steps:
        if step["type"] == "Replace":
            replacements.append((_plain_pattern(step), step["content"]))
        elif step["type"] == "Metaspace":
            replacements.append((step["replacement"], " "))
            scheme = step.get(
                "prepend_scheme", "always" if step.get("add_prefix_space") else "never"
            )
            strips = strips or scheme != "never"
        elif step["type"] == "Strip":
            if (step["content"], step["start"], step["stop"]) != (" ", 1, 0):
                raise UnsupportedError(
                    f"{_refused(step)}: only one space at the start can be stripped"
                )
            strips = True
    return PieceRule(
        form="text",
        replacements=tuple(replacements),
        byte_fallback=any(step["type"] == "ByteFallback" for step in steps),
        strips_first_space=strips,
    )


def _flatten(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder["type"] == "Sequence":
        return [step for part in decoder["decoders"] for step in _flatten(part)]
    return [decoder]


def _refused(step: dict[str, Any]) -> str:
    return f"tokenizer.json decoder {json.dumps(step, ensure_ascii=False)}"


def _refuse_unknown(steps: list[dict[str, Any]], known: set[str]) -> None:
    for step in steps:
        if step["type"] not in known:
            raise UnsupportedError(
                f"{_refused(step)}: supported here are {sorted(known)}; "
                "use a checkpoint with a byte-level or SentencePiece-like tokenizer"
            )


def _plain_pattern(step: dict[str, Any]) -> str:
    pattern = step["pattern"].get("String")
    if pattern is None:
        raise UnsupportedError(f"{_refused(step)}: only a plain string can be replaced")
    return pattern


class TokenPieces:
    """Bytes of every id of one tokenizer, worked out when first asked for and then kept.

    Args:
        backend: the tokenizer whose ids are meant.
        silent_ids: ids that never have text (padding rows of the vocabulary).
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, *, silent_ids: Collection[int] = frozenset()
    ) -> None:
        self._backend = backend
        self.rule = rule_of_decoder(backend)
        self._added = backend.get_added_tokens_decoder()
        self._alphabet = _byte_of_char()
        self._known: dict[int, bytes] = dict.fromkeys(silent_ids, b"")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one id; none for an id that the tokenizer does not list."""
        piece = self._known.get(token_id)
        if piece is None:
            piece = self._known[token_id] = self._make(int(token_id))
        return piece

    def _make(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id) if 0 <= token_id < 2**32 else None
        if token is None:
            return b""
        added = self._added.get(token_id)
        if added is not None and (added.special or self.rule.form == "bytes"):
            return token.encode("utf-8", "replace")
        if self.rule.form == "bytes":
            return self._bytes_of_alphabet(token)
        match = _BYTE_TOKEN.fullmatch(token) if self.rule.byte_fallback else None
        if match:
            return bytes([int(match[1], 16)])
        for old, new in self.rule.replacements:
            token = token.replace(old, new)
        return token.encode("utf-8", "replace")

    def _bytes_of_alphabet(self, token: str) -> bytes:
        try:
            return bytes([self._alphabet[char] for char in token])
        except KeyError:  # not written in the byte-level alphabet: its own text
            return token.encode("utf-8", "replace")
