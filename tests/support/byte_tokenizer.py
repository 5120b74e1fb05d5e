"""BYTE: a tokenizer with one token a byte (the id is the byte) and special tokens from 256 on."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from jaxinfer.text.tokenizer import Tokenizer

END, BOS = 256, 257
END_TEXT, BOS_TEXT = "<end>", "<bos>"
SPECIAL_TEXTS = (END_TEXT, BOS_TEXT)


def _alphabet() -> list[str]:
    """The character of every byte in the byte-level alphabet."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    shifted = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(shifted)) for byte in range(256)]


def byte_backend(*, adds_bos: bool = False) -> tokenizers.Tokenizer:
    """BYTE as a `tokenizers.Tokenizer`; with `adds_bos` its post-processor puts BOS first."""
    vocabulary = {char: byte for byte, char in enumerate(_alphabet())}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIAL_TEXTS))
    if adds_bos:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{BOS_TEXT} $A", pair=f"{BOS_TEXT} $A $B", special_tokens=[(BOS_TEXT, BOS)]
        )
    return backend


def byte_tokenizer(
    *, adds_bos: bool = False, chat_templates: Mapping[str, str] | None = None
) -> Tokenizer:
    """BYTE as jaxinfer's Tokenizer; EOS is `<end>`."""
    return Tokenizer(
        byte_backend(adds_bos=adds_bos),
        special_tokens={"bos_token": BOS_TEXT, "eos_token": END_TEXT},
        eos_token_ids=(END,),
        chat_templates=chat_templates,
    )


def save_byte_tokenizer(folder: Path, *, adds_bos: bool = False, **config: Any) -> None:
    """Writes BYTE as tokenizer.json and tokenizer_config.json; `config` adds keys to the latter."""
    byte_backend(adds_bos=adds_bos).save(str(folder / "tokenizer.json"))
    content = {"bos_token": BOS_TEXT, "eos_token": END_TEXT, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(content), encoding="utf-8")
