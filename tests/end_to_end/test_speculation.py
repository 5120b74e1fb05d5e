"""Speculation changes nothing but time: the same tokens and log-probabilities, drafts or not."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxinfer import LLM, SamplingParams
from tests.end_to_end.chains import START, chain_of, open_chain
from tests.end_to_end.conftest import OpenLLM
from tests.end_to_end.engines import WINDOWED, assert_drained, bits, run, set_loop
from tests.support.byte_tokenizer import END
from tests.support.tiny_models import TINY_CONFIG, write_tiny

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1}
ALWAYS = {**NGRAM, "adaptive": False, "tokens_by_running": ((4, 4),)}
# One prefill program: the engines of this file are many.
FOUR: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 16}
MODELS: dict[str, dict[str, Any]] = {"llama": {"base": TINY_CONFIG}, "gemma3": dict(WINDOWED)}
LOOP = [97, 98, 99]  # a b c


def loop_of(tokens: list[int]) -> dict[int, int]:
    """START, then the tokens over and over."""
    return {START: tokens[0], **dict(zip(tokens, [*tokens[1:], tokens[0]], strict=True))}


NEW = 200
CIRCLING = loop_of(LOOP) | {token: token + 1 for token in range(NEW, NEW + 20)}


def requests() -> list[tuple[list[int], SamplingParams]]:
    """Prompts that repeat themselves, drawn in every way that looks back at the tokens."""
    numbers = np.random.default_rng(3)
    common: dict[str, Any] = {"ignore_eos": True, "logprobs": 2}
    ways: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0.2, "seed": 1},
        {"temperature": 0, "repetition_penalty": 1.3, "presence_penalty": 0.5, "min_tokens": 5},
        {"temperature": 1.0, "seed": 2, "top_k": 2, "frequency_penalty": 0.7},
        {"temperature": 0.8, "seed": 3, "top_p": 0.6, "logit_bias": {5: 4.0}, "n": 2},
        {"temperature": 0, "prompt_logprobs": 1},
    ]
    made = []
    for place, way in enumerate(ways):
        piece = numbers.integers(0, 320, 4 + place).tolist()
        made.append((piece * 4, SamplingParams(**{**common, "max_tokens": 20 + place, **way})))
    return made


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("llama", "float32"),
        pytest.param("gemma3", "auto", marks=pytest.mark.slow),
        pytest.param("llama", "auto", marks=pytest.mark.slow),
        pytest.param("gemma3", "float32", marks=pytest.mark.slow),
    ],
)
def test_the_same_bits_with_and_without_drafts(
    open_llm: OpenLLM, tmp_path: Path, name: str, dtype: str
) -> None:
    """Promises 2 and 6: alone, together, and with pages for few of them."""
    folder = write_tiny(tmp_path, **MODELS[name])
    prompts, params = zip(*requests(), strict=True)
    with open_llm(folder, dtype=dtype, **FOUR) as plain:
        expected = [bits(output) for output in run(plain, prompts, list(params))]
    with open_llm(folder, dtype=dtype, **FOUR, speculative_config=ALWAYS) as drafting:
        assert [bits(output) for output in run(drafting, prompts, list(params))] == expected
        alone = [bits(run(drafting, [one], how)[0]) for one, how in requests()]
        assert alone == expected
        assert drafting.get_metrics()["spec_decode_num_drafts"] > 20
        assert_drained(drafting)
    few = {"admission": "optimistic", "num_gpu_blocks_override": 8, "speculative_config": ALWAYS}
    with open_llm(folder, dtype=dtype, preemption="swap", **FOUR, **few) as pressed:
        for preemption in ("swap", "recompute"):
            set_loop(pressed, preemption=preemption)
            before = pressed.get_metrics()["num_preemptions"]
            assert [bits(output) for output in run(pressed, prompts, list(params))] == expected
            assert pressed.get_metrics()["num_preemptions"] > before
            assert_drained(pressed)


def test_a_wrong_acceptance_rule_is_seen(
    open_llm: OpenLLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inverse: with every draft accepted the tokens are others."""
    from jaxinfer.runner import steps

    monkeypatch.setattr(steps, "count_accepted", lambda drawn, drafts, counts: counts)
    folder = write_tiny(tmp_path, **MODELS["llama"])
    prompts, params = zip(*requests(), strict=True)
    with open_llm(folder, **FOUR) as plain:
        expected = [bits(output) for output in run(plain, prompts, list(params))]
    with open_llm(folder, fresh=True, **FOUR, speculative_config=ALWAYS) as wrong:
        assert [bits(output) for output in run(wrong, prompts, list(params))] != expected


@pytest.fixture(scope="module")
def circling(open_llm: OpenLLM, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """CHAIN that says a b c a b c … for ever, and after NEW never the same twice."""
    folder = tmp_path_factory.mktemp("circling")
    with open_chain(open_llm, folder, CIRCLING, speculative_config=ALWAYS) as llm:
        yield llm


def counts(llm: LLM) -> dict[str, float]:
    return {k: v for k, v in llm.get_metrics().items() if k.startswith("spec_decode")}


def test_counters_of_a_trace_by_hand(circling: LLM) -> None:
    """! a b c | a b c a + b | …: the prompt draws a, two steps without drafts, then runs of five.

    After ! a b c a the last token has occurred: four drafts, all accepted, and one token more.
    """
    before = counts(circling)
    (output,) = run(circling, [[START]], SamplingParams(temperature=0, max_tokens=14))
    after = counts(circling)
    assert output.outputs[0].token_ids == [LOOP[place % 3] for place in range(14)]
    made = {name: after[name] - before.get(name, 0) for name in after}
    # Tokens 1 (prefill), 2, 3, 4 (decode); 5 to 9 (four drafts); 10 to 14 (four drafts).
    assert made["spec_decode_num_drafts"] == 2
    assert made["spec_decode_num_draft_tokens"] == 8
    assert made["spec_decode_num_accepted_tokens"] == 8
    assert made['spec_decode_num_accepted_tokens_per_pos{position="3"}'] == 2
    assert output.metrics.num_draft_tokens == output.metrics.num_accepted_draft_tokens == 8


def test_drafts_stop_at_the_limits(circling: LLM) -> None:
    """BB-43, vllm#5342: max_tokens and max_model_len inside a draft."""
    short = run(circling, [[START, *LOOP * 2]], SamplingParams(temperature=0, max_tokens=3))[0]
    assert short.outputs[0].token_ids == LOOP
    most = circling.geometry.max_model_len
    prompt = [START, *LOOP * most][: most - 4]
    params = SamplingParams(temperature=0, max_tokens=None)
    (output,) = run(circling, [prompt], params)
    # As many tokens as places after the prompt: the prompt's last token draws the first.
    assert len(output.outputs[0].token_ids) == 4
    assert output.outputs[0].finish_reason == "length"
    assert_drained(circling)


def test_eos_inside_a_draft_ends_the_text(open_llm: OpenLLM, tmp_path: Path) -> None:
    """BB-42, transformers#47912: counters count committed tokens; ignore_eos equals no drafts."""
    tokens = [97, 98, END]
    prompt = [START, *tokens, START, *tokens, START, 97]
    greedy = SamplingParams(temperature=0, max_tokens=12, logprobs=0)
    going_on = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=0)
    with open_chain(open_llm, tmp_path, chain_of(tokens)) as plain:
        expected = [bits(run(plain, [prompt], one)[0]) for one in (greedy, going_on)]
    with open_chain(open_llm, tmp_path, chain_of(tokens), speculative_config=ALWAYS) as llm:
        found = run(llm, [prompt], greedy)[0]
        assert found.outputs[0].token_ids == [98, END]
        assert found.outputs[0].finish_reason == "stop"
        # The prompt draws b; then END and three more are drafted, and nothing is after END.
        assert found.metrics.num_draft_tokens == 4 and found.metrics.accepted_per_position == (1,)
        assert [bits(found), bits(run(llm, [prompt], going_on)[0])] == expected
        assert_drained(llm)


def test_a_stop_string_inside_a_draft_drops_what_follows(circling: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=30, stop="ca", ignore_eos=True)
    (output,) = run(circling, [[START, *LOOP * 2]], params)
    assert output.outputs[0].text == "ab" and output.outputs[0].stop_reason == "ca"
    assert output.outputs[0].token_ids == [*LOOP, LOOP[0]]
    assert_drained(circling)


def test_rows_that_do_not_draft_ride_along(
    circling: LLM, open_llm: OpenLLM, tmp_path: Path
) -> None:
    """BB-46, vllm#16883: a match in one row only."""
    params = SamplingParams(temperature=0, max_tokens=9, logprobs=1)
    prompts = [[START, *LOOP * 3], [NEW]]
    together = run(circling, prompts, params)
    assert [one.metrics.num_drafts > 0 for one in together] == [True, False]
    with open_chain(open_llm, tmp_path, CIRCLING) as plain:
        alone = [run(plain, [prompt], params)[0] for prompt in prompts]
    assert [bits(one) for one in together] == [bits(one) for one in alone]


def test_aborting_in_the_midst_of_drafts_leaves_no_page(circling: LLM) -> None:
    stream = circling.stream([[START, *LOOP * 2]], SamplingParams(temperature=0, max_tokens=60))
    for _, _ in zip(range(7), stream, strict=False):
        pass
    stream.close()
    assert_drained(circling)


def test_nothing_is_compiled_for_drafts_after_the_start(circling: LLM) -> None:
    before = circling.get_metrics()["num_compiles"]
    run(circling, [[START, *LOOP * 2]] * 3, SamplingParams(temperature=0.5, max_tokens=20))
    assert circling.get_metrics()["num_compiles"] == before


def test_an_exact_tie_goes_to_the_lower_id_whatever_was_drafted(
    open_llm: OpenLLM, tmp_path: Path
) -> None:
    """BB-26 (vllm#41758): the other one of the two is looked up, and does not stand."""
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=1)
    chain = {START: 97, 97: (9, 5), 9: 97, 5: 97}
    with open_chain(open_llm, tmp_path, chain, speculative_config=ALWAYS) as llm:
        (output,) = run(llm, [[START, 97, 9, 97, 9]], params)
        completion = output.outputs[0]
        assert completion.token_ids == [97, 5] * 4
        assert [next(iter(one)) for one in completion.logprobs or []] == completion.token_ids
        assert output.metrics.num_draft_tokens > output.metrics.num_accepted_draft_tokens


@pytest.mark.slow
def test_more_drafts_and_longer_lookups_than_there_are_tokens(
    open_llm: OpenLLM, tmp_path: Path
) -> None:
    """BB-46, vllm#16883: k 300 and lookup 50, of which nothing is in a prompt of one token."""
    folder = write_tiny(tmp_path)
    prompts, params = zip(*requests()[:3], ([7], SamplingParams(temperature=0)), strict=True)
    wide = {**ALWAYS, "num_speculative_tokens": 300, "prompt_lookup_max": 50}
    wide["tokens_by_running"] = ((4, 300),)
    with open_llm(folder, **FOUR) as plain:
        expected = [bits(output) for output in run(plain, prompts, list(params))]
    with open_llm(folder, **FOUR, speculative_config=wide) as llm:
        assert [bits(output) for output in run(llm, prompts, list(params))] == expected
        assert llm.get_metrics()["spec_decode_num_drafts"] > 0
        (found,) = run(llm, [[7]], SamplingParams(temperature=0, max_tokens=1))
        assert found.metrics.num_draft_tokens == 0
        assert_drained(llm)
