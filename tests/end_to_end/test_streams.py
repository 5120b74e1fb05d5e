"""Streams: deltas join to what `generate` gives, and leaving one early costs nothing."""

import gc
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from jaxinfer import LLM, SamplingParams, StreamDelta
from jaxinfer.errors import JaxInferError, RequestError
from tests.end_to_end.conftest import OpenLLM
from tests.end_to_end.engines import assert_drained, bits, run

PROMPTS = ["a", [5, 6, 7], {"prompt": "c" * 50}, {"prompt_token_ids": [9] * 33}]
PARAMS = SamplingParams(temperature=1.2, seed=4, n=2, max_tokens=9, ignore_eos=True)


def joined(deltas: Iterable[StreamDelta]) -> dict[tuple[str, int], tuple]:
    """Text, ids and end of every completion, joined from its deltas."""
    found: defaultdict[tuple[str, int], Any] = defaultdict(lambda: ("", [], None))
    for delta in deltas:
        text, token_ids, ended = found[delta.request_id, delta.index]
        assert ended is None, "a delta after the last one"
        found[delta.request_id, delta.index] = (
            text + delta.text,
            token_ids + delta.token_ids,
            delta.finish_reason,
        )
    return dict(found)


def test_deltas_join_to_what_generate_gives(tiny: LLM) -> None:
    """Promise 4."""
    outputs = run(tiny, PROMPTS, PARAMS)
    streamed = joined(tiny.stream(PROMPTS, PARAMS))
    assert len(streamed) == 8
    wanted = [
        (one.text, one.token_ids, one.finish_reason) for row in outputs for one in row.outputs
    ]
    by_order = sorted(streamed, key=lambda key: (int(key[0]), key[1]))
    assert [streamed[key] for key in by_order] == wanted


def test_a_delta_comes_for_every_token(tiny: LLM) -> None:
    deltas = list(tiny.stream([[5, 6, 7]], SamplingParams(temperature=0, max_tokens=6)))
    assert [len(delta.token_ids) for delta in deltas] == [1] * len(deltas)


def test_a_refused_prompt_is_one_delta_with_its_error(tiny: LLM) -> None:
    deltas = list(tiny.stream([[], [1, 2]], SamplingParams(temperature=0, max_tokens=2)))
    (refused,) = [delta for delta in deltas if delta.error is not None]
    assert (refused.finish_reason, refused.token_ids, refused.text) == ("error", [], "")
    assert len({delta.request_id for delta in deltas}) == 2


@pytest.mark.parametrize("leave", ["close", "forget", "raise"])
def test_leaving_a_stream_early_frees_its_pages(tiny: LLM, leave: str) -> None:
    before = [bits(output) for output in run(tiny, PROMPTS, PARAMS)]
    stream = tiny.stream(PROMPTS, PARAMS)
    next(stream)
    assert tiny.engine.scheduler.has_work
    if leave == "close":
        stream.close()
    elif leave == "raise":
        with pytest.raises(ZeroDivisionError):
            stream.throw(ZeroDivisionError)
    del stream
    gc.collect()
    assert_drained(tiny)
    assert tiny.get_metrics()['request_success{finished_reason="abort"}'] > 0
    assert [bits(output) for output in run(tiny, PROMPTS, PARAMS)] == before


def test_a_stream_that_was_never_begun_holds_nothing(tiny: LLM) -> None:
    stream = tiny.stream(PROMPTS, PARAMS)
    assert_drained(tiny)
    assert run(tiny, [[1]])[0].error is None
    stream.close()


def test_other_calls_wait_for_the_end_of_a_stream(tiny: LLM) -> None:
    stream = tiny.stream([[1, 2]], PARAMS)
    next(stream)
    for call in (
        lambda: run(tiny, [[1]]),
        lambda: tiny.logits([1]),
        lambda: next(tiny.stream("a")),
    ):
        with pytest.raises(JaxInferError, match="under way; finish or close it first"):
            call()
    assert joined(stream)  # the refused calls did not disturb it
    assert run(tiny, [[1]])[0].error is None


def test_an_interrupted_generate_frees_its_pages(
    tiny: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [bits(output) for output in run(tiny, PROMPTS, PARAMS)]
    step, calls = tiny.engine.step, []

    def interrupted() -> list[StreamDelta]:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(tiny.engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(tiny, PROMPTS, PARAMS)
    monkeypatch.undo()
    assert_drained(tiny)
    assert [bits(output) for output in run(tiny, PROMPTS, PARAMS)] == before


def test_strict_raises_in_a_stream_too(open_llm: OpenLLM, tiny_folder: Path) -> None:
    with open_llm(tiny_folder, max_num_seqs=8, strict=True) as llm:
        with pytest.raises(RequestError, match="outside the vocabulary"):
            list(llm.stream([[1, 2], [320]], PARAMS))
        assert_drained(llm)
        assert joined(llm.stream([[1, 2]], PARAMS))


def test_the_bar_ends_at_the_number_of_prompts(
    tiny: LLM, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.generate([[1], [], [2, 3]], SamplingParams(max_tokens=2))
    assert "3/3" in capsys.readouterr().err
    run(tiny, [[1]])
    assert capsys.readouterr().err == ""


def test_a_stream_that_is_left_keeps_the_prefix_cache(tiny: LLM) -> None:
    prompt = list(range(100, 180))
    run(tiny, [prompt], SamplingParams(max_tokens=1))
    stream = tiny.stream([[*prompt, 1]], SamplingParams(max_tokens=40, ignore_eos=True))
    next(stream)
    stream.close()
    (output,) = run(tiny, [[*prompt, 2]], SamplingParams(max_tokens=1))
    assert output.num_cached_tokens == 80
    assert_drained(tiny)


def test_who_leaves_at_the_last_delta_leaves_an_idle_engine(tiny: LLM) -> None:
    stream = tiny.stream([[5, 6]], SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))
    for delta in stream:
        if delta.finish_reason:
            break
    assert run(tiny, [[7]], SamplingParams(max_tokens=1))[0].error is None  # while it is suspended
    stream.close()
    assert_drained(tiny)
