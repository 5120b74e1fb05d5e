"""Models that draft change nothing but time: another checkpoint, or the model's own made cheaper.

One engine a proposer, with pages for few requests: `set_loop` makes it reserve or preempt, and
share prefixes or not.
"""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxinfer import LLM, SamplingParams
from jaxinfer.errors import ConfigError
from tests.end_to_end.chains import START, chain_of, open_chain
from tests.end_to_end.conftest import OpenLLM
from tests.end_to_end.engines import WINDOWED, assert_drained, bits, run, set_loop
from tests.support.byte_tokenizer import END, byte_backend, save_byte_tokenizer
from tests.support.tiny_models import TINY_CONFIG, random_weights, write_hf_folder, write_tiny

ALWAYS = {"num_speculative_tokens": 3, "adaptive": False, "tokens_by_running": ((4, 3),)}
FEW: dict[str, Any] = {
    "max_num_batched_tokens": 16,
    "num_gpu_blocks_override": 5,
    "admission": "optimistic",
    "preemption": "swap",
}
MODELS: dict[str, dict[str, Any]] = {"llama": {"base": TINY_CONFIG}, "gemma3": dict(WINDOWED)}
LOOPS: list[dict[str, Any]] = [
    {"admission": "reserve"},
    {"admission": "reserve", "enable_prefix_caching": False, "async_scheduling": False},
    {"admission": "optimistic", "preemption": "swap"},
    {"admission": "optimistic", "preemption": "recompute", "enable_prefix_caching": False},
]


def drafting(method: str, **options: Any) -> dict[str, Any]:
    return {"method": method, **ALWAYS, **options}


def write_like(folder: Path, noise: float, **changes: Any) -> Path:
    """TINY with noise on its weights: it often, and not always, agrees with TINY."""
    base = {**changes.pop("base", TINY_CONFIG), **changes}
    weights = random_weights(base)
    random = np.random.default_rng(5)
    for value in weights.values():
        value += noise * random.standard_normal(value.shape, np.float32)
    return write_hf_folder(folder, base, weights)


def proposers(folder: Path, model: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By name: what `speculative_config` may hold, for a model of two layers."""
    near = write_like(folder / "near", 0.02, **model)
    return {
        "draft_model": drafting("draft_model", model=str(near)),
        "int8": drafting("self", quantization={"method": "int8", "float_ends": 0}),
        "int4": drafting("self", quantization={"method": "int4", "float_ends": 0}),
        "one_layer": drafting("self", num_layers=1),
    }


def requests() -> list[tuple[list[int], SamplingParams]]:
    """Drawn in every way that looks back at the tokens; two begin alike, one is drawn twice."""
    numbers = np.random.default_rng(3)
    begin = numbers.integers(0, 320, 20).tolist()
    common: dict[str, Any] = {"ignore_eos": True, "logprobs": 2}
    ways: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0.3, "seed": 1},
        {"temperature": 0, "repetition_penalty": 1.3, "presence_penalty": 0.5, "min_tokens": 5},
        {"temperature": 1.0, "seed": 2, "top_k": 2, "frequency_penalty": 0.7},
        {"temperature": 0.8, "seed": 3, "top_p": 0.6, "logit_bias": {5: 4.0}, "n": 2},
    ]
    made = []
    for place, way in enumerate(ways):
        prompt = begin[: 20 - 5 * (place // 2)] + numbers.integers(0, 320, 3 + place).tolist()
        made.append((prompt, SamplingParams(**{**common, "max_tokens": 24 + place, **way})))
    return made


def accepted(llm: LLM) -> tuple[int, int]:
    counts = llm.get_metrics()
    names = ("draft_tokens", "accepted_tokens")
    return tuple(int(counts[f"spec_decode_num_{name}"]) for name in names)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("name", "proposer", "dtype"),
    [
        ("gemma3", "draft_model", "float32"),
        ("llama", "one_layer", "float32"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in product(
                ("llama", "gemma3"),
                ("draft_model", "int8", "int4", "one_layer"),
                ("float32", "auto"),
            )
            if each not in (("gemma3", "draft_model", "float32"), ("llama", "one_layer", "float32"))
        ),
    ],
)
def test_the_same_bits_with_and_without_a_model_that_drafts(
    open_llm: OpenLLM, tmp_path: Path, name: str, proposer: str, dtype: str
) -> None:
    """Promises 2, 6 and 7: together, alone, swapped, computed anew, from shared pages."""
    model = {**MODELS[name], "eos_token_id": END}
    folder = write_tiny(tmp_path / "model", **model)
    speculative = proposers(tmp_path, model)[proposer]
    # Drafts of int8 codes may all stand, and then requests end before pages run out.
    some_fall = proposer != "int8"
    prompts, params = zip(*requests(), strict=True)
    with open_llm(folder, dtype=dtype, max_num_batched_tokens=16) as plain:
        expected = [bits(output) for output in run(plain, prompts, list(params))]
    with open_llm(folder, dtype=dtype, **FEW, speculative_config=speculative) as llm:
        for loop in LOOPS:
            set_loop(llm, **{**FEW_LOOP, **loop})
            before = llm.get_metrics()["num_preemptions"]
            assert [bits(output) for output in run(llm, prompts, list(params))] == expected, loop
            assert_drained(llm)
            if loop["admission"] == "optimistic" and some_fall:
                assert llm.get_metrics()["num_preemptions"] > before
        set_loop(llm, **FEW_LOOP)
        alone = [bits(run(llm, [one], how)[0]) for one, how in requests()[-2:]]
        assert alone == expected[-2:]
        drafts, stood = accepted(llm)
        assert drafts > 100 and 0 < stood <= drafts - some_fall


FEW_LOOP: dict[str, Any] = {
    "enable_prefix_caching": True,
    "async_scheduling": True,
    **{name: FEW[name] for name in ("admission", "preemption")},
}


@pytest.fixture(scope="module")
def twins(open_llm: OpenLLM, tiny_folder: Path) -> Callable[..., LLM]:
    """Opens TINY with a draft model of TINY's shape."""

    def open_one(model: Path = tiny_folder, **options: Any) -> LLM:
        speculative = drafting("draft_model", model=str(model))
        return open_llm(tiny_folder, **{**FEW, **options}, speculative_config=speculative)

    return open_one


WAYS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.0, "seed": 4},
    {"temperature": 1.3, "seed": 5, "top_k": 9, "top_p": 0.9, "repetition_penalty": 1.2, "n": 3},
    {"temperature": 0, "presence_penalty": 1.0, "bad_words": ["a"], "min_tokens": 8},
]


@pytest.mark.parametrize("kv", ["auto", pytest.param("fp8", marks=pytest.mark.slow)])
def test_a_model_that_drafts_for_itself_agrees_with_itself(
    twins: Callable[..., LLM], kv: str
) -> None:
    """Promise 6: drawn with the model's random numbers, every draft stands, sampled ones too; over
    prefix hits, forks, swaps and prompts computed anew, so its pages hold what they must."""
    # Two that run together begin with three pages and would end with eight, of five.
    prompts = [list(range(7, 7 + length)) for length in (18, 10, 20, 11)]
    params = [SamplingParams(max_tokens=45, ignore_eos=True, **way) for way in WAYS]
    with twins(kv_cache_dtype=kv) as llm:
        for loop in LOOPS:
            set_loop(llm, **{**FEW_LOOP, **loop})
            run(llm, prompts, params)
            run(llm, prompts[:1], params[:1])  # finds its pages
            assert_drained(llm)
        drafts, stood = accepted(llm)
        assert drafts == stood > 300
        numbers = llm.get_metrics()
        assert numbers["num_preemptions"] > 0 and numbers["prefix_cache_hits"] > 0
        assert numbers["spec_decode_acceptance_rate"] == 1.0


@pytest.mark.slow
def test_the_first_layers_are_all_layers(open_llm: OpenLLM, tiny_folder: Path) -> None:
    """Another way to draft for itself: the model's own pages, whole."""
    speculative = drafting("self", num_layers=2)
    with open_llm(tiny_folder, **FEW, speculative_config=speculative) as llm:
        params = [SamplingParams(max_tokens=20, ignore_eos=True, **way) for way in WAYS]
        run(llm, [[5, 6, 7]] * len(WAYS), params)
        drafts, stood = accepted(llm)
        assert drafts == stood > 50


def test_counters_of_a_round_by_hand(twins: Callable[..., LLM]) -> None:
    """Ten tokens: one by prefill; 3 + 1, 3 + 1 by two rounds, and the last needs no draft."""
    with twins() as llm:
        (output,) = run(
            llm, [[5, 6]], SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
        )
        numbers = llm.get_metrics()
    assert numbers["spec_decode_num_drafts"] == numbers["spec_decode_num_rounds"] == 2
    assert (
        numbers["spec_decode_num_draft_tokens"] == numbers["spec_decode_num_accepted_tokens"] == 6
    )
    assert numbers["spec_decode_mean_acceptance_length"] == 4.0
    assert numbers["num_decode_steps"] == 3
    assert numbers['spec_decode_num_accepted_tokens_per_pos{position="2"}'] == 2
    assert output.metrics.num_draft_tokens == output.metrics.num_accepted_draft_tokens == 6
    assert 0 < numbers["spec_decode_draft_seconds"] and 0 < numbers["spec_decode_verify_seconds"]


def test_a_round_is_one_transfer_and_nothing_is_compiled(
    twins: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Draft steps are launched without waiting; the host reads once a round."""
    reads: list[Any] = []

    def counted(read: Callable[..., Any]) -> Callable[..., Any]:
        def reading(one: Any, *rest: Any, **options: Any) -> Any:
            if isinstance(one, jax.Array):
                reads.append(one.shape)
            return read(one, *rest, **options)

        return reading

    for name in ("asarray", "array"):  # also where `jax.device_get` reads
        monkeypatch.setattr(np, name, counted(getattr(np, name)))
    with twins() as llm:
        reads.clear()
        before = llm.get_metrics()["num_compiles"]
        run(llm, [[5, 6]], SamplingParams(temperature=0.5, max_tokens=9, ignore_eos=True))
        assert len(reads) == 3, reads
        assert llm.get_metrics()["num_compiles"] == before


def test_aborting_between_drafts_leaves_no_page(twins: Callable[..., LLM]) -> None:
    with twins() as llm:
        params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True, n=1)
        stream = llm.stream([[5, 6, 7], [8, 9]], params)
        for _, _ in zip(range(7), stream, strict=False):
            pass
        stream.close()
        assert_drained(llm)


def test_an_end_inside_a_round(twins: Callable[..., LLM]) -> None:
    """BB-42, transformers#47912: counters count what was committed; the text ends as without."""
    greedy: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
    with twins() as llm:
        free = run(llm, [[5, 6]], SamplingParams(**greedy))[0].outputs[0].token_ids
        assert free[2] not in free[:2]
        params = SamplingParams(**greedy, stop_token_ids=[free[2]])
        (found,) = run(llm, [[5, 6]], params)
        assert found.outputs[0].token_ids == free[:3]
        assert found.outputs[0].finish_reason == "stop"
        assert found.metrics.num_draft_tokens == 3
        assert found.metrics.num_accepted_draft_tokens == 2
        (short,) = run(llm, [[5, 6]], SamplingParams(**{**greedy, "max_tokens": 3}))
        assert short.outputs[0].token_ids == free[:3]
        assert_drained(llm)


@pytest.mark.slow
def test_stops_inside_a_round(open_llm: OpenLLM, tmp_path: Path) -> None:
    """BB-42, transformers#47912: target = draft, EOS third, k 5; ignore_eos too; a stop string."""
    tokens = [97, 98, END, 99, 100]
    greedy = SamplingParams(temperature=0, max_tokens=12, logprobs=0)
    ways = [
        greedy,
        SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=0),
        SamplingParams(temperature=0, max_tokens=12, stop="bc", ignore_eos=True),
        SamplingParams(temperature=0, max_tokens=3, logprobs=0),
    ]
    with open_chain(open_llm, tmp_path, chain_of(tokens)) as plain:
        expected = [bits(run(plain, [[START]], one)[0]) for one in ways]
    speculative = {**drafting("draft_model", model=str(tmp_path)), "num_speculative_tokens": 5}
    speculative["tokens_by_running"] = ((4, 5),)
    with open_chain(open_llm, tmp_path, chain_of(tokens), speculative_config=speculative) as llm:
        (found,) = run(llm, [[START]], greedy)
        assert found.outputs[0].token_ids == [97, 98, END]
        assert found.outputs[0].finish_reason == "stop"
        assert found.metrics.num_accepted_draft_tokens == 2  # of five that agreed
        assert [bits(run(llm, [[START]], one)[0]) for one in ways] == expected
        # BB-43, vllm#5342: as many tokens as there are places left.
        most = llm.geometry.max_model_len
        prompt = [START, *[100] * most][: most - 4]
        (output,) = run(llm, [prompt], SamplingParams(temperature=0, max_tokens=None))
        assert len(output.outputs[0].token_ids) == 4
        assert_drained(llm)


def test_what_the_draft_model_has_no_positions_for_is_not_drafted(
    twins: Callable[..., LLM], tmp_path: Path, tiny_folder: Path, open_llm: OpenLLM
) -> None:
    """BB-43, vllm#24662: a draft model of 32 positions goes on unspeculated."""
    short = write_tiny(tmp_path, eos_token_id=256, max_position_embeddings=32)
    params = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True, logprobs=0)
    with twins(short) as llm:
        (found,) = run(llm, [[5, 6, 7]], params)
        drafts, stood = accepted(llm)
        assert drafts == stood and 20 < stood < 32
    with open_llm(tiny_folder, max_num_batched_tokens=16) as plain:
        assert bits(run(plain, [[5, 6, 7]], params)[0]) == bits(found)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(264, 272), (272, 264)])
def test_tables_with_padding_of_other_sizes(
    open_llm: OpenLLM, tmp_path: Path, sizes: tuple[int, int]
) -> None:
    """BB-44, vllm#13849: the same tokenizer, other numbers of rows."""
    model, draft = (
        write_tiny(tmp_path / name, vocab_size=size, eos_token_id=END)
        for name, size in zip(("model", "draft"), sizes, strict=True)
    )
    for folder in (model, draft):
        save_byte_tokenizer(folder)
    params = [SamplingParams(max_tokens=12, ignore_eos=True, **way) for way in WAYS[:2]]
    prompts = [[5, 6, sizes[0] - 1], [7, 8]]
    with open_llm(model, max_num_batched_tokens=16) as plain:
        expected = [bits(one) for one in run(plain, prompts, params)]
    speculative = drafting("draft_model", model=str(draft))
    with open_llm(model, max_num_batched_tokens=16, speculative_config=speculative) as llm:
        assert [bits(one) for one in run(llm, prompts, params)] == expected


def test_another_vocabulary_is_refused(twins: Callable[..., LLM], tmp_path: Path) -> None:
    """BB-44, sglang#23838: the same size, two strings swapped; another EOS id."""
    swapped = write_tiny(tmp_path / "swapped", eos_token_id=END)
    save_byte_tokenizer(swapped)
    text = (swapped / "tokenizer.json").read_text(encoding="utf-8")
    vocabulary = byte_backend().get_vocab()
    assert vocabulary["A"] == 65 and vocabulary["B"] == 66
    text = text.replace('"A": 65', '"A": 66').replace('"B": 66', '"B": 65')
    (swapped / "tokenizer.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="id 65 is 'B' there and 'A'"):
        twins(swapped)
    other_end = write_tiny(tmp_path / "end", eos_token_id=258)
    with pytest.raises(ConfigError, match=r"EOS ids \[258\]"):
        twins(other_end)


def test_memory_holds_the_draft_model_and_its_pages(
    twins: Callable[..., LLM], open_llm: OpenLLM, tiny_folder: Path
) -> None:
    """Weights and pages of both; a model that drafts for itself shares what is the same."""
    plan = {}
    with open_llm(tiny_folder, **FEW) as llm:
        plan["none"] = llm.memory_plan
    with twins() as llm:
        plan["draft_model"] = llm.memory_plan
        runner = llm.engine.runner
        held = sum(leaf.nbytes for leaf in (*runner.cache.keys, *runner.cache.values))
        assert held == llm.memory_plan.kv_cache_bytes
    with open_llm(tiny_folder, **FEW, speculative_config=drafting("self", num_layers=1)) as llm:
        plan["one_layer"] = llm.memory_plan
    assert plan["draft_model"].weights_bytes == 2 * plan["none"].weights_bytes
    assert plan["draft_model"].kv_cache_bytes == 2 * plan["none"].kv_cache_bytes
    for name in ("weights_bytes", "kv_cache_bytes"):
        assert getattr(plan["one_layer"], name) == getattr(plan["none"], name)
