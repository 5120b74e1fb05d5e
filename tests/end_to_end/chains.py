"""CHAIN engines whose greedy output spells a text, with a tokenizer of bytes and a few pieces."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxinfer import LLM
from jaxinfer.text.tokenizer import Tokenizer
from tests.end_to_end.conftest import OpenLLM
from tests.support.byte_tokenizer import BOS_TEXT, END, END_TEXT, byte_backend
from tests.support.tiny_models import write_chain

# Ids from 258 on; every token of a chain has one successor, so a repeated byte needs a piece.
PIECES = ("lo", "ld")
LO, LD = 258, 259
START = 33  # "!": the prompt that every chain starts from
HELLO_WORLD = [*b"hel", LO, *b" wor", LD]


def piece_tokenizer() -> Tokenizer:
    """BYTE with the pieces as further tokens."""
    backend = byte_backend()
    backend.add_tokens(list(PIECES))
    return Tokenizer(
        backend,
        special_tokens={"bos_token": BOS_TEXT, "eos_token": END_TEXT},
        eos_token_ids=(END,),
    )


def chain_of(tokens: Sequence[int]) -> dict[int, int | Sequence[int]]:
    """START, then `tokens`, whose last repeats itself."""
    assert len(set(tokens)) == len(tokens)
    return dict(zip((START, *tokens), tokens, strict=False))


@contextmanager
def open_chain(
    open_llm: OpenLLM,
    folder: Path,
    next_tokens: Mapping[int, int | Sequence[int]],
    **options: Any,
) -> Iterator[LLM]:
    """An engine of CHAIN; all have the same shapes and so the same programs."""
    write_chain(folder, next_tokens, eos_token_id=END)
    settings = {"tokenizer": piece_tokenizer(), "max_num_batched_tokens": 16, **options}
    with open_llm(folder, **settings) as llm:
        yield llm
