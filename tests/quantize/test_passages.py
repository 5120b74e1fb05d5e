"""Where in a text is judged, and what each judged place predicts."""

import numpy as np
import pytest

from jaxinfer.errors import ConfigError
from jaxinfer.quantize.passages import Passages, begin_ids, cut_passages
from tests.support.byte_tokenizer import BOS, byte_tokenizer

TEXT = "".join(chr(97 + number % 26) for number in range(200))


def test_places_before_each_length() -> None:
    ids = (tuple(range(9)), tuple(range(10, 19)))
    passages = Passages(contexts=(2, 4, 8), judged=3, token_ids=ids)
    assert passages.places == [0, 1, 1, 2, 3, 5, 6, 7]
    assert passages.row_contexts().tolist() == [2, 2, 4, 4, 4, 8, 8, 8] * 2
    assert passages.targets().tolist() == [1, 2, 2, 3, 4, 6, 7, 8, 11, 12, 12, 13, 14, 16, 17, 18]
    assert passages.num_rows == 16 and passages.longest == 8


@pytest.mark.parametrize("adds_bos", [False, True])
def test_passages_are_spread_and_do_not_overlap(adds_bos: bool) -> None:
    tokenizer, length = byte_tokenizer(adds_bos=adds_bos), 10
    assert begin_ids(tokenizer) == [BOS] * adds_bos
    all_of_it = cut_passages(tokenizer, TEXT, contexts=[length], judged=2, num_passages=99)
    assert len(all_of_it.token_ids) == 200 // (length + 1 - adds_bos) == (20 if adds_bos else 18)
    three = cut_passages(tokenizer, TEXT, contexts=[length], judged=2, num_passages=3).token_ids
    first, *_, last = (ids[adds_bos:] for ids in three)
    assert (
        bytes(first).decode() == TEXT[: len(first)] and bytes(last).decode() == TEXT[-len(last) :]
    )
    for ids in (*three, *all_of_it.token_ids):
        assert len(ids) == length + 1 and (ids[0] == BOS) == adds_bos
    starts = [TEXT.index(bytes(ids[adds_bos:]).decode()) for ids in all_of_it.token_ids[:2]]
    assert starts == [0, length + 1 - adds_bos]


def test_one_passage_is_the_beginning() -> None:
    (ids,) = cut_passages(byte_tokenizer(), TEXT, contexts=[8], judged=8, num_passages=1).token_ids
    assert bytes(ids).decode() == TEXT[:9]


def test_a_text_that_is_too_short_says_both_lengths() -> None:
    with pytest.raises(ConfigError, match="200 tokens, a context of 200 takes 201"):
        cut_passages(byte_tokenizer(), TEXT, contexts=[16, 200], judged=1, num_passages=1)


@pytest.mark.parametrize(
    ("contexts", "judged", "num_passages", "said"),
    [
        ([], 1, 1, r"contexts=\[\]"),
        ([1], 1, 1, r"contexts=\[1\]"),
        ([8, 4], 1, 1, "ascending"),
        ([4, 4], 1, 1, "ascending"),
        ([4], 0, 1, "judged=0"),
        ([4], 1, 0, "passages=0"),
    ],
)
def test_wrong_numbers(contexts: list[int], judged: int, num_passages: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        cut_passages(
            byte_tokenizer(), TEXT, contexts=contexts, judged=judged, num_passages=num_passages
        )


def test_targets_are_int32() -> None:
    assert Passages(contexts=(2,), judged=1, token_ids=((5, 6, 7),)).targets().dtype == np.int32
