"""Text as tokens come: whole characters, stop strings, hold-back, equality with decode."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.errors import RequestError
from jaxinfer.text.detokenize import IncrementalDetokenizer
from jaxinfer.text.gguf_tokenizer import tokenizer_from_gguf
from jaxinfer.text.tokenizer import Tokenizer
from tests.support.byte_tokenizer import BOS, END, END_TEXT, byte_tokenizer
from tests.support.gguf_tokenizers import sentence_piece_metadata, smollm2_metadata

BYTE = byte_tokenizer()
PIECES = ("\u2581", "a", "b", "\u2581a", "ab", "日")
SENTENCE_PIECE = tokenizer_from_gguf(sentence_piece_metadata(*PIECES))
assert SENTENCE_PIECE is not None
WORDS = tokenizer_from_gguf(
    sentence_piece_metadata(
        *("\u2581", "a", "ab", "b\n", "hello", "\u2581world", "日本"), add_space_prefix=False
    )
)
REPLACED = "\ufffd"


def run(
    ids: Iterable[int], *, tokenizer: Tokenizer = BYTE, unchecked: int = 0, **options: Any
) -> tuple[list[str], IncrementalDetokenizer]:
    """Pushes ids until a stop string is found; gives the deltas and the detokenizer."""
    detokenizer = IncrementalDetokenizer(tokenizer, **options)
    deltas = []
    for place, token in enumerate(ids):
        delta = detokenizer.push(token, check_stop=place >= unchecked)
        deltas.append(delta.text)
        assert (delta.stopped, delta.stop_reason) == (
            detokenizer.stopped,
            detokenizer.stop_reason,
        )
        if delta.stopped:
            break
    deltas.append(detokenizer.finish().text)
    assert "".join(deltas) == detokenizer.text
    return deltas, detokenizer


def cut_at_first_stop(
    text: str, stops: Sequence[str], include: bool, *, after: int = 0
) -> tuple[str, str | None]:
    """What the text must be, a character at a time; ends within the first `after` do not count."""
    for end in range(after + 1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


@settings(deadline=None)
@given(st.lists(st.integers(0, 260)), st.booleans())
def test_deltas_join_to_decode(ids: list[int], skip: bool) -> None:
    _, detokenizer = run(ids, skip_special_tokens=skip)
    assert detokenizer.text == BYTE.decode(ids, skip_special_tokens=skip)


@settings(deadline=None)
@given(st.lists(st.integers(0, 266)), st.booleans())
def test_deltas_join_to_decode_for_sentence_piece(ids: list[int], skip: bool) -> None:
    _, detokenizer = run(ids, tokenizer=SENTENCE_PIECE, skip_special_tokens=skip)
    assert detokenizer.text == SENTENCE_PIECE.decode(ids, skip_special_tokens=skip)


@settings(deadline=None)
@given(
    st.text(alphabet="abé日 "),
    st.lists(st.text(alphabet="abé日 ", min_size=1, max_size=4), max_size=3),
    st.booleans(),
)
def test_stop_strings_against_a_search_by_character(
    text: str, stops: list[str], include: bool
) -> None:
    """Promise 4, BB-23: whatever the stop strings; a byte at a time."""
    _, detokenizer = run(text.encode(), stop_strings=stops, include_stop_str_in_output=include)
    expected = cut_at_first_stop(text, stops, include)
    assert (detokenizer.text, detokenizer.stop_reason) == expected


@settings(deadline=None)
@given(st.lists(st.sampled_from(["a", "ab", "b\n", "hello", " world", "日本"]), max_size=12))
def test_stop_strings_do_not_depend_on_how_text_is_tokenized(words: list[str]) -> None:
    tokenizer = WORDS
    assert tokenizer is not None
    ids = [tokenizer.token_id(word.replace(" ", "\u2581")) for word in words]
    stops = ["lo w", "ba", "本a", "\n"]
    _, detokenizer = run([i for i in ids if i is not None], tokenizer=tokenizer, stop_strings=stops)
    expected = cut_at_first_stop("".join(words), stops, False)
    assert (detokenizer.text, detokenizer.stop_reason) == expected


@pytest.mark.parametrize(
    ("stops", "text", "reason", "num_tokens"),
    [
        (["h"], "", "h", 1),
        (["lo w"], "hel", "lo w", 7),
        (["world", "wor"], "hello ", "wor", 9),
        (["xyz"], "hello world", None, 11),
    ],
)
@pytest.mark.parametrize("include", [False, True])
def test_stop_strings_across_tokens(
    stops: list[str], text: str, reason: str | None, num_tokens: int, include: bool
) -> None:
    """BB-23 (vllm#3672, #3150, #2123)."""
    deltas, detokenizer = run(
        b"hello world", stop_strings=stops, include_stop_str_in_output=include
    )
    assert detokenizer.text == text + (reason or "") * include
    assert detokenizer.stop_reason == reason
    assert len(deltas) == num_tokens + 1


def test_stop_strings_inside_one_token() -> None:
    """The one that ends first, as if characters came one by one; what follows it is cut."""
    tokenizer = tokenizer_from_gguf(sentence_piece_metadata("one, two, three"))
    assert tokenizer is not None
    stops = ["three", "two", "e, t"]
    _, detokenizer = run([259], tokenizer=tokenizer, stop_strings=stops)
    assert (detokenizer.text, detokenizer.stop_reason) == ("on", "e, t")
    _, detokenizer = run(
        [259], tokenizer=tokenizer, stop_strings=stops, include_stop_str_in_output=True
    )
    assert detokenizer.text == "one, t"


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("include", [False, True])
def test_the_text_of_a_special_token_as_stop_string(skip: bool, include: bool) -> None:
    """BB-23: it stops though it is skipped, and no visible character is lost."""
    _, detokenizer = run(
        [*b"hello", END, *b"more"],
        stop_strings=[END_TEXT],
        include_stop_str_in_output=include,
        skip_special_tokens=skip,
    )
    assert detokenizer.stop_reason == END_TEXT
    assert detokenizer.text == "hello" + END_TEXT * include


def test_other_special_tokens_do_not_cut_text() -> None:
    """BB-23: a stop string is found around an invisible token, and cut at the right place."""
    ids = [*b"hel", BOS, *b"lo w", END, *b"orld"]
    _, detokenizer = run(ids, stop_strings=["lo wo"])
    assert (detokenizer.text, detokenizer.stop_reason) == ("hel", "lo wo")


def test_stop_strings_are_not_looked_for_until_min_tokens() -> None:
    """BB-22 (vllm#21987)."""
    _, detokenizer = run(b"abcabc", stop_strings=["b"], unchecked=3)
    assert (detokenizer.text, detokenizer.stop_reason) == ("abca", "b")
    _, detokenizer = run(b"abcdef", stop_strings=["b"], unchecked=5)
    assert (detokenizer.text, detokenizer.stop_reason) == ("abcdef", None)
    _, detokenizer = run(b"abcd", stop_strings=["bcd"], unchecked=3)
    assert (detokenizer.text, detokenizer.stop_reason) == ("a", "bcd")
    _, detokenizer = run([*b"a", END, *b"b"], stop_strings=[END_TEXT], unchecked=2)
    assert (detokenizer.text, detokenizer.stop_reason) == ("ab", None)


@settings(deadline=None)
@given(
    st.text(alphabet="abé日", max_size=12),
    st.lists(st.text(alphabet="abé日", min_size=1, max_size=3), max_size=3),
    st.integers(0, 8),
    st.booleans(),
)
def test_min_tokens_against_a_search_by_character(
    text: str, stops: list[str], unchecked: int, include: bool
) -> None:
    """BB-22: a stop string counts where it ends after the first `unchecked` tokens (bytes)."""
    _, detokenizer = run(
        text.encode(), unchecked=unchecked, stop_strings=stops, include_stop_str_in_output=include
    )
    whole = [end for end in range(len(text) + 1) if len(text[:end].encode()) <= unchecked]
    expected = cut_at_first_stop(text, stops, include, after=whole[-1])
    assert (detokenizer.text, detokenizer.stop_reason) == expected


BB24_TEXT = "日本\U0001f389é ZZZ"


@pytest.mark.parametrize(
    ("stops", "text"), [([], BB24_TEXT), (["ZZZ"], "日本\U0001f389é "), (["é"], "日本\U0001f389")]
)
def test_multi_byte_text_with_stop_strings(stops: list[str], text: str) -> None:
    """BB-24 (vllm#44620, exllamav3#171, mlx-vlm#1771)."""
    deltas, detokenizer = run(BB24_TEXT.encode(), stop_strings=stops)
    assert detokenizer.text == text
    included = run(BB24_TEXT.encode(), stop_strings=stops, include_stop_str_in_output=True)[1]
    assert included.text == text + (detokenizer.stop_reason or "")
    assert not any(REPLACED in delta for delta in deltas)
    assert all(len(delta) <= 1 for delta in deltas[:-1])


@pytest.mark.parametrize("stops", [["ZZZ"], ["é"], ["日本語テキスト"]])
def test_multi_byte_text_that_ends_inside_a_character_with_stop_strings(stops: list[str]) -> None:
    """BB-24: what was held back comes with the end, and one mark for the two bytes."""
    ids = "日本".encode()[:5]
    deltas, detokenizer = run(ids, stop_strings=stops)
    assert detokenizer.text == "日" + REPLACED == BYTE.decode([*ids])
    assert not any(REPLACED in delta for delta in deltas[:-1])


def test_text_that_ends_inside_a_character() -> None:
    """BB-24: max_tokens after 2 of 3 bytes; the mark comes at the very end only."""
    ids = [*b"a", *"日".encode()[:2]]
    deltas, detokenizer = run(ids)
    assert deltas == ["a", "", "", REPLACED]
    assert detokenizer.text == BYTE.decode(ids)


def test_hold_back_counts_characters() -> None:
    """BB-24: (longest stop - 1) characters are held back, however many bytes they have."""
    deltas, _ = run("日本語テキ".encode(), stop_strings=["xyz", "q"])
    assert [delta for delta in deltas if delta] == ["日", "本", "語", "テキ"]
    assert deltas[8] == "日" and deltas[:8] == [""] * 8


def test_nothing_is_held_back_without_need() -> None:
    deltas, _ = run(b"abc")
    assert deltas == ["a", "b", "c", ""]
    deltas, _ = run(b"abc", stop_strings=["xyz"], include_stop_str_in_output=True)
    assert deltas == ["a", "b", "c", ""]


def test_after_a_stop_nothing_is_added() -> None:
    detokenizer = IncrementalDetokenizer(BYTE, stop_strings="b")
    for token in b"ab":
        detokenizer.push(token)
    assert detokenizer.push(99) == detokenizer.finish()
    assert (detokenizer.text, detokenizer.push(99).stopped) == ("a", True)


def test_a_first_space_stays_where_the_text_continues_a_prompt() -> None:
    ids = [262, 263]  # " a", "ab"
    assert run(ids, tokenizer=SENTENCE_PIECE)[1].text == "aab"
    assert run(ids, tokenizer=SENTENCE_PIECE, prompt_ids=[5])[1].text == " aab"


def test_ids_beyond_the_list() -> None:
    """BB-27: no text, no failure."""
    assert run([72, 10**6, -1, 105])[1].text == "Hi"


@pytest.mark.parametrize("skip", [False, True])
def test_rows_of_the_head_that_the_tokenizer_lacks(skip: bool) -> None:
    """BB-27 (vllm#340): 320 rows, 258 tokens; nothing splits a character or a stop string."""
    ids = [*b"a", 300, *"日".encode()[:2], 319, *"日".encode()[2:], 258, *b"bc"]
    deltas, detokenizer = run(ids, skip_special_tokens=skip)
    assert detokenizer.text == "a日bc" == BYTE.decode(ids, skip_special_tokens=skip)
    assert not any(REPLACED in delta for delta in deltas)
    _, detokenizer = run(ids, skip_special_tokens=skip, stop_strings=["日b"])
    assert (detokenizer.text, detokenizer.stop_reason) == ("a", "日b")


@pytest.mark.parametrize("stops", [[""], ["a", ""], [5]])
def test_stop_strings_that_are_none(stops: Any) -> None:
    with pytest.raises(RequestError, match="stop"):
        IncrementalDetokenizer(BYTE, stop_strings=stops)


def test_real_text_of_a_byte_level_tokenizer() -> None:
    tokenizer = tokenizer_from_gguf(smollm2_metadata())
    assert tokenizer is not None
    text = "Ĝis la revido! 日本語 \U0001f469\u200d\U0001f467 naïve\r\n\tend"
    _, detokenizer = run(tokenizer.encode(text), tokenizer=tokenizer, stop_strings=["END"])
    assert detokenizer.text == text


def test_cost_is_linear() -> None:
    """A token of a long text costs about what one of a short text does (measured: 1 to 3 µs)."""
    seconds = []
    for count in (5_000, 50_000):
        started = time.perf_counter()
        run([*b"some text "] * (count // 10), stop_strings=["stop", "string"])
        seconds.append((time.perf_counter() - started) / count)
    assert seconds[1] < 5 * seconds[0] + 5e-6
    assert seconds[1] < 100e-6
