"""HOST. What the device is told of a request that gets a slot: limits, counts, last tokens.

Knows ids only: a tokenizer's `encode` is handed in.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np

from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.config.step_plan import (
    BAD_WORD_ROWS,
    MAX_BAD_WORD_TOKENS,
    MAX_BIAS_IDS,
    PROMPT_FLAG,
    RECENT_TOKENS,
    SeatPlan,
)
from jaxinfer.errors import RequestError

_NO_TOKEN = -2  # in `recent`: equals no token of a bad word, nor the -1 of its padding


def needs_seat(params: SamplingParams) -> bool:
    """True where drawing needs what the device keeps of a slot: limits or counts."""
    return (
        params.presence_penalty != 0
        or params.frequency_penalty != 0
        or params.repetition_penalty != 1
        or params.min_tokens > 0
        or params.allowed_token_ids is not None
        or bool(params.bias_entries or params.bad_words)
    )


def seat_plan(
    slot: int,
    *,
    params: SamplingParams,
    end_ids: Collection[int],
    bad_word_ids: Sequence[Sequence[int]],
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    vocab_size: int,
) -> SeatPlan:
    """What the device must hold of a request before its next draw; all ids lie in the vocabulary.

    Args:
        end_ids: tokens that end the request.
        bad_word_ids: from `bad_word_ids`.
        output_ids: tokens drawn so far, where the request was preempted.
    """
    allowed = range(vocab_size) if params.allowed_token_ids is None else params.allowed_token_ids
    bias_ids = np.full(MAX_BIAS_IDS, vocab_size, np.int32)
    bias_values = np.zeros(MAX_BIAS_IDS, np.float32)
    for place, (token, bias) in enumerate(params.bias_entries):
        bias_ids[place], bias_values[place] = token, bias
    return SeatPlan(
        slot=slot,
        recent=_recent(prompt_ids, output_ids),
        seen=_seen(prompt_ids, output_ids, vocab_size),
        allowed=_as_bits(allowed, vocab_size),
        ends=_as_bits(end_ids, vocab_size),
        bias_ids=bias_ids,
        bias_values=bias_values,
        bad_words=_bad_word_rows(bad_word_ids),
    )


def bad_word_ids(
    words: Iterable[str], encode: Callable[[str], Sequence[int]]
) -> tuple[tuple[int, ...], ...]:
    """The token ids of each word without and with a space before it; equal ones once.

    Args:
        encode: text → ids, without special tokens.

    Raises:
        RequestError: a word of more than MAX_BAD_WORD_TOKENS tokens, or of none.
    """
    spellings: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip(" ")
        for text in (bare, f" {bare}") if bare else (word,):
            spellings[_checked_spelling(word, encode(text))] = None
    return tuple(spellings)


def _checked_spelling(word: str, ids: Sequence[int]) -> tuple[int, ...]:
    if not ids:
        raise RequestError(
            f"bad_words has {word!r}, which the tokenizer gives no tokens; leave it out"
        )
    if len(ids) > MAX_BAD_WORD_TOKENS:
        raise RequestError(
            f"bad_words has {word!r}, which is {len(ids)} tokens long, {MAX_BAD_WORD_TOKENS} are "
            "allowed; pass a shorter part of it"
        )
    return tuple(int(token) for token in ids)


def _recent(prompt_ids: Sequence[int], output_ids: Sequence[int]) -> np.ndarray:
    last = [*prompt_ids[-RECENT_TOKENS:], *output_ids[-RECENT_TOKENS:]][-RECENT_TOKENS:]
    return np.array([_NO_TOKEN] * (RECENT_TOKENS - len(last)) + last, np.int32)


def _seen(prompt_ids: Sequence[int], output_ids: Sequence[int], vocab_size: int) -> np.ndarray:
    counts = np.bincount(np.asarray(output_ids, np.int64), minlength=vocab_size).astype(np.int32)
    counts[np.asarray(prompt_ids, np.int64)] |= PROMPT_FLAG
    return counts


def _as_bits(ids: Collection[int], vocab_size: int) -> np.ndarray:
    """Example: ids 0, 2 and 32 of 33 are the words 0b101 and 0b1."""
    flags = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
    flags[list(ids)] = 1
    return np.packbits(flags, bitorder="little").view("<u4").astype(np.uint32)


def _bad_word_rows(words: Sequence[Sequence[int]]) -> np.ndarray:
    rows = np.full((BAD_WORD_ROWS, MAX_BAD_WORD_TOKENS), -1, np.int32)
    for row, ids in enumerate(words):
        rows[row, -len(ids) :] = ids
    return rows
