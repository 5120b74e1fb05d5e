"""How tokens are drawn, seen from outside: settings, seeds, log-probabilities, ties."""

from pathlib import Path

import numpy as np
import pytest

from jaxinfer import LLM, SamplingParams
from jaxinfer.errors import ConfigError, RequestError
from tests.end_to_end.chains import START, chain_of, open_chain
from tests.end_to_end.conftest import OpenLLM
from tests.end_to_end.engines import bits, ids, run, run_one
from tests.support.byte_tokenizer import byte_tokenizer

PROMPT = [7, 100, 250, 31]
CHAIN = list(range(60, 72))


def test_extreme_settings_share_a_batch(tiny: LLM) -> None:
    """BB-19 (vllm-metal#646, vllm#14181): each row as alone; off is off; one token is arg max."""
    common = {"temperature": 1.0, "seed": 3, "max_tokens": 10, "ignore_eos": True, "logprobs": 2}
    ways = [
        {"temperature": 0.0},
        {"top_k": 64},
        {"top_k": -1},
        {"top_k": 0},
        {"top_k": 9_999_999},
        {"top_p": 1e-9},
        {"min_p": 1.0},
        {"top_k": 2**31},
    ]
    params = [SamplingParams(**{**common, **way}) for way in ways]
    together = run(tiny, [PROMPT] * len(params), params)
    alone = [run(tiny, [PROMPT], [one])[0] for one in params]
    assert [bits(output) for output in together] == [bits(output) for output in alone]
    greedy, _, minus_one, off, huge, tiny_p, all_min_p, beyond_int32 = ids(together)
    assert minus_one == off == huge == beyond_int32
    assert tiny_p == all_min_p == greedy
    assert off != greedy


@pytest.mark.parametrize("value", [{"top_p": 0}, {"top_k": -2}, {"temperature": float("nan")}])
def test_values_outside_their_rule_raise(value: dict) -> None:
    """BB-19: the rest of the list is in tests/config."""
    with pytest.raises(ValueError, match=f"SamplingParams.{next(iter(value))}"):
        SamplingParams(**value)


@pytest.mark.parametrize("dtype", ["float32", "auto"])
def test_tiny_temperatures_are_greedy(open_llm: OpenLLM, tmp_path: Path, dtype: str) -> None:
    """BB-20 (vllm#3063, #2937): blank or padding tokens through overflow."""
    with open_chain(open_llm, tmp_path, chain_of(CHAIN), dtype=dtype) as llm:
        greedy = run(llm, [[START]], SamplingParams(temperature=0, max_tokens=8, logprobs=1))[0]
        assert greedy.outputs[0].token_ids == CHAIN[:8]
        temperatures = (1e-2, 1e-4, 1e-6, 1e-30, 5e-324)
        params = [
            SamplingParams(temperature=value, max_tokens=8, logprobs=1) for value in temperatures
        ]
        outputs = run(llm, [[START]] * len(params), params)
        assert [bits(output) for output in outputs] == [bits(greedy)] * len(params)


def test_unseeded_prompts_differ_and_report_a_seed_that_repeats_them(tiny: LLM) -> None:
    """BB-21 (mlx-vlm#1818): identical unseeded prompts gave identical samples."""
    wild = SamplingParams(temperature=1.5, max_tokens=12, ignore_eos=True)
    first, second = run(tiny, [PROMPT, PROMPT], wild)
    assert ids([first]) != ids([second])
    seeds = [output.outputs[0].seed for output in (first, second)]
    assert seeds[0] != seeds[1]
    again = [
        SamplingParams(temperature=1.5, max_tokens=12, ignore_eos=True, seed=seed) for seed in seeds
    ]
    assert ids(run(tiny, [PROMPT, PROMPT], again)) == ids([first, second])


def test_equal_seeds_give_equal_samples(tiny: LLM) -> None:
    """BB-21."""
    seeded = SamplingParams(temperature=1.5, max_tokens=12, ignore_eos=True, seed=7)
    first, second = run(tiny, [PROMPT, PROMPT], seeded)
    assert bits(first) == bits(second)
    assert first.outputs[0].seed == 7


def test_a_neighbour_without_a_seed_disturbs_nothing(tiny: LLM) -> None:
    """BB-21 (vllm#51226)."""
    seeded = SamplingParams(temperature=1.5, max_tokens=12, ignore_eos=True, seed=42)
    unseeded = SamplingParams(temperature=1.5, max_tokens=12, ignore_eos=True)
    rows = [run(tiny, [PROMPT, [9, 9]], [seeded, unseeded]) for _ in range(5)]
    assert len({tuple(ids(outputs)[0]) for outputs in rows}) == 1
    assert len({tuple(ids(outputs)[1]) for outputs in rows}) == 5


def test_samples_of_one_prompt_depend_on_their_index_alone(tiny: LLM) -> None:
    """BB-21: four different samples, of which the first two are those of n=2 (promise 3)."""
    base = {"temperature": 1.5, "max_tokens": 12, "ignore_eos": True, "seed": 7}
    (four,) = run(tiny, [PROMPT], SamplingParams(**base, n=4))
    (two,) = run(tiny, [PROMPT], SamplingParams(**base, n=2))
    assert [one.index for one in four.outputs] == [0, 1, 2, 3]
    assert len({tuple(one.token_ids) for one in four.outputs}) == 4
    assert bits(four)[:2] == bits(two)
    assert {one.seed for one in four.outputs} == {7}
    assert four.metrics.num_generation_tokens == 48


def test_more_samples_than_slots(tiny: LLM) -> None:
    base = {"temperature": 1.5, "max_tokens": 5, "ignore_eos": True, "seed": 7}
    (many,) = run(tiny, [PROMPT], SamplingParams(**base, n=19))
    assert [one.index for one in many.outputs] == list(range(19))
    assert all(len(one.token_ids) == 5 for one in many.outputs)


def test_the_engine_seed_repeats_unseeded_samples(open_llm: OpenLLM, tiny_folder: Path) -> None:
    wild = SamplingParams(temperature=1.5, max_tokens=12)
    outputs = []
    for seed in (5, 5, 6):
        with open_llm(tiny_folder, seed=seed, max_num_seqs=8) as llm:
            outputs.append(ids(run(llm, [PROMPT, PROMPT], wild)))
    assert outputs[0] == outputs[1] != outputs[2]


def test_log_probabilities_are_raw_and_hold_the_drawn_token(tiny: LLM) -> None:
    """BB-26 (vllm#9453, mistral.rs#2329): positive, or changed by the temperature."""
    ways = [
        {"temperature": 0, "logprobs": 3},
        {"temperature": 0.1, "top_k": 1, "logprobs": 3, "seed": 1},
        {"temperature": 1.0, "top_k": 1, "logprobs": 3, "seed": 2},
    ]
    outputs = run(tiny, [PROMPT] * 3, [SamplingParams(**way, max_tokens=6) for way in ways])
    assert bits(outputs[0]) == bits(outputs[1]) == bits(outputs[2])
    logits = tiny.logits(PROMPT)[-1].astype(np.float64)
    expected = logits - np.log(np.sum(np.exp(logits - logits.max()))) - logits.max()
    listed = outputs[0].outputs[0].logprobs
    assert listed is not None
    assert list(listed[0]) == np.argsort(-expected)[:3].tolist()
    for rank, (token, entry) in enumerate(listed[0].items(), 1):
        assert entry.rank == rank
        assert entry.logprob == pytest.approx(expected[token], abs=1e-4)
    assert all(entry.logprob <= 0 for step in listed for entry in step.values())


def test_the_drawn_token_is_listed_beside_the_best(tiny: LLM) -> None:
    """BB-26: k entries and the drawn one, so k + 1 where it is not among them."""
    params = SamplingParams(temperature=2.0, seed=1, max_tokens=20, ignore_eos=True, logprobs=3)
    completion = run_one(tiny, PROMPT, params)
    assert completion.logprobs is not None and len(completion.logprobs) == 20
    outside = 0
    for token, listed in zip(completion.token_ids, completion.logprobs, strict=True):
        assert token in listed
        outside += listed[token].rank > 3
        assert len(listed) == 3 + (listed[token].rank > 3)
    assert outside > 0
    drawn = [
        listed[token].logprob
        for token, listed in zip(completion.token_ids, completion.logprobs, strict=True)
    ]
    assert completion.cumulative_logprob == pytest.approx(sum(drawn))


def test_zero_log_probabilities_are_those_of_the_drawn_tokens(tiny: LLM) -> None:
    """BB-26."""
    completion = run_one(tiny, PROMPT, SamplingParams(temperature=0, max_tokens=4, logprobs=0))
    assert completion.logprobs is not None
    assert [list(listed) for listed in completion.logprobs] == [[t] for t in completion.token_ids]
    without = run_one(tiny, PROMPT, SamplingParams(temperature=0, max_tokens=4))
    assert (without.logprobs, without.cumulative_logprob) == (None, None)


def test_an_exact_tie_goes_to_the_lower_id(open_llm: OpenLLM, tmp_path: Path) -> None:
    """BB-26 (vllm#41758): alone and in a batch, and always among the entries."""
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=1)
    with open_chain(open_llm, tmp_path, {START: (9, 5)}) as llm:
        outputs = run(llm, [[START]] * 5, params) + run(llm, [[START]], params)
        assert ids(outputs) == [[5]] * 6
        assert len({str(bits(output)) for output in outputs}) == 1
        listed = outputs[0].outputs[0].logprobs
        assert listed is not None and list(listed[0]) == [5]
        sampled = SamplingParams(temperature=1.0, top_k=1, max_tokens=1, n=40, seed=1)
        (tied,) = run(llm, [[START]], sampled)
        assert {one.token_ids[0] for one in tied.outputs} == {5, 9}  # both are the best


def test_a_token_beyond_the_tokenizer_has_no_text(open_llm: OpenLLM, tmp_path: Path) -> None:
    """BB-27 (vllm#340): a padded row of the head was chosen and decoding failed."""
    chain = chain_of([300, *b"ok"])
    with open_chain(open_llm, tmp_path, chain, tokenizer=byte_tokenizer()) as llm:
        params = SamplingParams(temperature=0, max_tokens=3, logprobs=1)
        completion = run_one(llm, [START], params)
        assert (completion.token_ids, completion.text) == ([300, *b"ok"], "ok")
        assert completion.logprobs is not None
        assert completion.logprobs[0][300].decoded_token == ""
        assert [delta.text for delta in llm.stream([[START]], params)] == ["", "o", "k"]


def test_one_set_of_parameters_for_each_prompt_or_for_all(tiny: LLM) -> None:
    two = [SamplingParams(temperature=0, max_tokens=count) for count in (1, 3)]
    assert [len(found) for found in ids(run(tiny, [PROMPT, PROMPT], two))] == [1, 3]
    with pytest.raises(ConfigError, match="2 sampling params for 3 prompts"):
        run(tiny, [PROMPT] * 3, two)
    for wrong in ({"temperature": 0}, ["greedy"], 5):
        with pytest.raises(ConfigError, match="must be SamplingParams"):
            run(tiny, [PROMPT], wrong)


def test_defaults_draw_sixteen_tokens_at_most(tiny: LLM) -> None:
    (output,) = tiny.generate([PROMPT], use_tqdm=False)
    assert 1 <= len(output.outputs[0].token_ids) <= 16


def test_a_stop_id_outside_the_vocabulary_is_that_row_s_error(tiny: LLM) -> None:
    good, bad = SamplingParams(max_tokens=2), SamplingParams(stop_token_ids=[320])
    outputs = run(tiny, [PROMPT, PROMPT], [good, bad])
    assert outputs[0].error is None
    assert outputs[1].error is not None and "320" in outputs[1].error
    assert issubclass(RequestError, ValueError)
