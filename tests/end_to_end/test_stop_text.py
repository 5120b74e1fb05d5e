"""Where a text ends and what streams show of it: stop strings, stop ids, EOS, split characters."""

from collections.abc import Iterator, Sequence

import pytest

from jaxinfer import LLM, CompletionOutput, SamplingParams
from tests.end_to_end.chains import HELLO_WORLD, START, chain_of, open_chain
from tests.end_to_end.conftest import OpenLLM
from tests.end_to_end.engines import assert_drained, run, run_one
from tests.support.byte_tokenizer import END, END_TEXT

MULTI_BYTE = "语😀é"  # all bytes differ, as a chain needs


@pytest.fixture(scope="module")
def hello(open_llm: OpenLLM, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """Spells "hello world", then `<end>`, then "?" for ever."""
    chain = chain_of([*HELLO_WORLD, END, *b"?"])
    with open_chain(open_llm, tmp_path_factory.mktemp("hello"), chain) as llm:
        yield llm
        assert_drained(llm)


@pytest.fixture(scope="module")
def multi_byte(open_llm: OpenLLM, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """Spells MULTI_BYTE, a blank and "Z" for ever."""
    chain = chain_of([*MULTI_BYTE.encode(), *b" Z"])
    with open_chain(open_llm, tmp_path_factory.mktemp("bytes"), chain) as llm:
        yield llm
        assert_drained(llm)


def greedy(llm: LLM, **params: object) -> CompletionOutput:
    """One completion; its stream must join to the same text and ids."""
    asked = SamplingParams(**{"temperature": 0, "max_tokens": 16, **params})  # type: ignore[arg-type]
    completion = run_one(llm, [START], asked)
    deltas = list(llm.stream([[START]], asked))
    assert "".join(delta.text for delta in deltas) == completion.text
    assert sum((delta.token_ids for delta in deltas), []) == completion.token_ids
    assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].finish_reason == completion.finish_reason
    return completion


def test_eos_ends_the_text_and_is_among_the_ids(hello: LLM) -> None:
    completion = greedy(hello)
    assert completion.text == "hello world"
    assert completion.token_ids == [*HELLO_WORLD, END]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", None)


def test_ignored_eos_goes_on(hello: LLM) -> None:
    completion = greedy(hello, ignore_eos=True)
    assert completion.text == "hello world" + "?" * (16 - len(HELLO_WORLD) - 1)
    assert completion.finish_reason == "length"


def test_max_tokens_counts_tokens(hello: LLM) -> None:
    completion = greedy(hello, max_tokens=4)
    assert (completion.text, completion.finish_reason) == ("hello", "length")


@pytest.mark.parametrize(
    ("stop", "text", "included", "num_tokens"),
    [
        ("h", "", "h", 1),
        ("lo w", "hel", "hello w", 6),
        (["world", "wor"], "hello ", "hello wor", 8),
        (["zzz", "d"], "hello worl", "hello world", 9),
        ("o", "hell", "hello", 4),
    ],
)
def test_stop_strings_across_tokens(
    hello: LLM, stop: str | Sequence[str], text: str, included: str, num_tokens: int
) -> None:
    """BB-23 (vllm#3672, #3150): neither leaked nor cut too far."""
    for include, wanted in ((False, text), (True, included)):
        completion = greedy(hello, stop=stop, include_stop_str_in_output=include)
        assert completion.text == wanted
        assert completion.token_ids == HELLO_WORLD[:num_tokens]
        assert completion.finish_reason == "stop"
        assert completion.stop_reason in ([stop] if isinstance(stop, str) else stop)
        assert included.endswith(str(completion.stop_reason))


def test_a_stop_string_that_never_comes_holds_nothing_back_at_the_end(hello: LLM) -> None:
    completion = greedy(hello, stop="world peace")
    assert (completion.text, completion.finish_reason) == ("hello world", "stop")
    assert completion.stop_reason is None  # EOS ended it


def test_a_stop_string_that_is_a_special_token_stops(hello: LLM) -> None:
    """BB-23 (vllm#2123): though the token's text is skipped."""
    completion = greedy(hello, stop=END_TEXT, ignore_eos=True)
    assert (completion.text, completion.stop_reason) == ("hello world", END_TEXT)
    assert completion.token_ids == [*HELLO_WORLD, END]
    shown = greedy(hello, stop=END_TEXT, ignore_eos=True, include_stop_str_in_output=True)
    assert shown.text == "hello world" + END_TEXT


@pytest.mark.parametrize("include", [False, True])
def test_an_invisible_stop_id_cuts_no_visible_character(hello: LLM, include: bool) -> None:
    """BB-23: the text was cut by the length of a special token that it did not show."""
    completion = greedy(
        hello, stop_token_ids=[END], ignore_eos=True, include_stop_str_in_output=include
    )
    assert (completion.text, completion.stop_reason) == ("hello world", END)


def test_a_visible_stop_id_is_shown_only_where_asked(hello: LLM) -> None:
    (space,) = b" "
    assert greedy(hello, stop_token_ids=[space]).text == "hello"
    shown = greedy(hello, stop_token_ids=[space], include_stop_str_in_output=True)
    assert (shown.text, shown.stop_reason) == ("hello ", space)


def test_special_tokens_are_shown_where_asked(hello: LLM) -> None:
    completion = greedy(hello, ignore_eos=True, skip_special_tokens=False, max_tokens=11)
    assert completion.text == "hello world" + END_TEXT + "?"


def test_without_detokenizing_there_are_only_ids(hello: LLM) -> None:
    completion = greedy(hello, detokenize=False)
    assert (completion.text, completion.token_ids) == ("", [*HELLO_WORLD, END])


@pytest.mark.parametrize(
    ("stop", "text"),
    [((), MULTI_BYTE + " ZZZZZ"), ("ZZZ", MULTI_BYTE + " "), ("é", MULTI_BYTE[:2])],
)
def test_no_character_is_split(multi_byte: LLM, stop: str | tuple, text: str) -> None:
    """BB-24 (vllm#44620, exllamav3#171): multi-byte text with stop strings, in a stream."""
    assert greedy(multi_byte, stop=stop, max_tokens=15).text == text
    params = SamplingParams(temperature=0, stop=stop, max_tokens=15)
    deltas = [delta.text for delta in multi_byte.stream([[START]], params)]
    assert not any("\ufffd" in delta for delta in deltas)
    assert any("😀" in delta for delta in deltas)


def test_bytes_of_half_a_character_become_one_mark_at_the_end(multi_byte: LLM) -> None:
    """BB-24: max_tokens ends after two of three bytes; before the end nothing is shown."""
    completion = greedy(multi_byte, max_tokens=2)
    assert completion.text == "\ufffd"
    assert completion.text == bytes(completion.token_ids).decode(errors="replace")
    params = SamplingParams(temperature=0, max_tokens=2)
    assert [delta.text for delta in multi_byte.stream([[START]], params)] == ["", "\ufffd"]


def test_stop_strings_are_not_looked_for_before_min_tokens(hello: LLM) -> None:
    """BB-22 (vllm#21987): "e" comes second and once; "o" fourth and seventh."""
    before = greedy(hello, stop="e", min_tokens=5)
    assert (before.text, before.stop_reason) == ("hello world", None)
    late = greedy(hello, stop="o", min_tokens=5)
    assert (late.text, late.stop_reason) == ("hello w", "o")
    assert late.token_ids == HELLO_WORLD[:7]
    for count, text in ((3, "hell"), (4, "hello w")):  # the token after min_tokens counts
        assert greedy(hello, stop="o", min_tokens=count).text == text
    included = greedy(hello, stop="o", min_tokens=5, include_stop_str_in_output=True)
    assert included.text == "hello wo"


def test_ends_are_masked_before_min_tokens(hello: LLM) -> None:
    """BB-22: EOS would be the tenth token, the stop id the third; something else is drawn."""
    eos = greedy(hello, min_tokens=12, max_tokens=14, detokenize=False)
    assert eos.token_ids[:9] == HELLO_WORLD and END not in eos.token_ids[:12]
    assert len(eos.token_ids) >= 12
    assert greedy(hello, min_tokens=9).token_ids == [*HELLO_WORLD, END]
    (letter,) = b"l"
    masked = greedy(hello, stop_token_ids=[letter], min_tokens=4, detokenize=False)
    assert masked.token_ids[:2] == HELLO_WORLD[:2] and letter not in masked.token_ids[:4]
    shown = greedy(hello, stop_token_ids=[letter], min_tokens=2)
    assert (shown.token_ids, shown.stop_reason) == ([*b"hel"], letter)


def test_random_bytes_join_to_the_decoded_ids(tiny: LLM) -> None:
    """Sampled tokens are mostly invalid UTF-8: promise 4 holds for them as well."""
    params = SamplingParams(temperature=2.0, seed=11, n=3, max_tokens=40, ignore_eos=True)
    (output,) = run(tiny, ["abc"], params)
    texts = {index: "" for index in range(3)}
    for delta in tiny.stream(["abc"], params):
        texts[delta.index] += delta.text
    tokenizer = tiny.get_tokenizer()
    assert tokenizer is not None
    for completion in output.outputs:
        assert texts[completion.index] == completion.text
        assert completion.text == tokenizer.decode(completion.token_ids)
