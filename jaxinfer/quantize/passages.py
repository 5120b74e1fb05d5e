"""HOST. What a model is judged on: passages of token ids, and the places in them that count.

Knows ids, no models; every passage has the same places.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxinfer.errors import ConfigError
from jaxinfer.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Passages:
    """contexts: tokens that are before the judged ones end, ascending. judged: places judged before
    each. token_ids: a passage each, of one id more than the longest context (the last is only ever
    predicted).

    A place p stands for the logits after token p, which predict token p + 1.
    """

    contexts: tuple[int, ...]
    judged: int
    token_ids: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        check_contexts(self.contexts, self.judged)

    @property
    def longest(self) -> int:
        """Tokens of a passage that go in."""
        return self.contexts[-1]

    @property
    def places(self) -> list[int]:
        """The judged places of a passage, contexts in turn; a shorter one is judged whole.

        Example: contexts 4 and 8, 3 judged → 1 2 3 5 6 7.
        """
        return [place for end in self.contexts for place in range(max(0, end - self.judged), end)]

    @property
    def num_rows(self) -> int:
        """Judged places of all passages."""
        return len(self.token_ids) * len(self.places)

    def row_contexts(self) -> np.ndarray:
        """[rows] – the context that each judged row belongs to, passages in turn."""
        each = [end for end in self.contexts for _ in range(min(end, self.judged))]
        return np.array(each * len(self.token_ids))

    def targets(self) -> np.ndarray:
        """[rows] i32 – the token that each judged row predicts, passages in turn."""
        following = np.array(self.places) + 1
        return np.array(self.token_ids, np.int32)[:, following].reshape(-1)


def check_contexts(contexts: Sequence[int], judged: int) -> None:
    """Raises ConfigError where the contexts are none, too short or out of order."""
    if not contexts or min(contexts) < 2 or list(contexts) != sorted(set(contexts)):
        raise ConfigError(
            f"contexts={list(contexts)} must be ascending numbers of at least 2 tokens, such as "
            "256,1024"
        )
    if judged < 1:
        raise ConfigError(f"judged={judged} must be at least 1: that many places before each")


def cut_passages(
    tokenizer: Tokenizer,
    text: str,
    *,
    contexts: Sequence[int],
    judged: int,
    num_passages: int,
) -> Passages:
    """Passages from all over a text, each begun as the tokenizer begins a text (with BOS or not).

    Args:
        num_passages: at most; a shorter text gives fewer.

    Raises:
        ConfigError: a text too short for one passage, or wrong numbers.
    """
    check_contexts(contexts, judged)
    if num_passages < 1:
        raise ConfigError(f"passages={num_passages} must be at least 1")
    start = begin_ids(tokenizer)
    ids = tokenizer.encode(text, add_special_tokens=False)
    body = max(contexts) + 1 - len(start)
    count = min(num_passages, len(ids) // body)
    if not count:
        raise ConfigError(
            f"the text has {len(ids):,} tokens, a context of {max(contexts):,} takes {body:,}; "
            "give a longer text or shorter contexts"
        )
    # Evenly spread: the room that is left over lies between the passages.
    room = len(ids) - count * body
    firsts = [number * body + number * room // max(1, count - 1) for number in range(count)]
    parts = tuple(tuple(start + ids[first : first + body]) for first in firsts)
    return Passages(contexts=tuple(contexts), judged=judged, token_ids=parts)


def begin_ids(tokenizer: Tokenizer) -> list[int]:
    """What the tokenizer puts before a text: [BOS] or nothing."""
    return [token for token in tokenizer.encode("")[:1] if token == tokenizer.bos_token_id]
