"""Engines with quantized caches: what comes out, and that nothing else decides it.

A code is written once, from the token's own keys or values: promises 2, 3 and 6 hold bit for bit.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from jaxinfer import LLM
from jaxinfer.engine.teacher import forced_logits
from jaxinfer.errors import CheckpointError
from tests.end_to_end.conftest import OpenLLM
from tests.end_to_end.engines import WINDOWED, assert_drained, set_loop
from tests.end_to_end.random_requests import random_requests, run_all, run_each
from tests.support.byte_tokenizer import END, save_byte_tokenizer
from tests.support.quant_folders import write_quantized_tiny
from tests.support.tiny_models import write_tiny

DATA = Path(__file__).parents[1] / "data"
KV_DTYPES = ("int8", "fp8", "int8_key_only")
ASKED = random_requests(3, 24)  # those of test_batching, which two slots cannot hold
DRAFTS: dict[str, Any] = {
    "method": "ngram",
    "num_speculative_tokens": 4,
    "prompt_lookup_min": 1,
    "tokens_by_running": ((4, 4),),
    "adaptive": False,
}
OPTIONS: dict[str, Any] = {
    "max_num_batched_tokens": 16,
    "num_gpu_blocks_override": 10,  # one request of 160 tokens and no more
    "admission": "optimistic",
    "preemption": "swap",
    "speculative_config": DRAFTS,
}
ONE_BY_ONE = {"admission": "reserve", "enable_prefix_caching": False, "async_scheduling": False}


@pytest.fixture(
    scope="module",
    params=["int8", *(pytest.param(name, marks=pytest.mark.slow) for name in KV_DTYPES[1:])],
)
def coded(
    request: pytest.FixtureRequest, open_llm: OpenLLM, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LLM]:
    """A window layer and a full one, i.e. two cache groups."""
    model = write_tiny(tmp_path_factory.mktemp("coded"), **WINDOWED, eos_token_id=END)
    save_byte_tokenizer(model)
    with open_llm(model, kv_cache_dtype=request.param, **OPTIONS) as llm:
        yield llm


def counts(llm: LLM) -> tuple[float, ...]:
    names = ("num_preemptions", "prefix_cache_hits", "spec_decode_num_accepted_tokens")
    return tuple(llm.get_metrics()[name] for name in names)


def test_bits_are_those_of_a_request_alone(coded: LLM) -> None:
    """Promises 2, 3 and 6: with neighbours, a third of the pages, recomputing and swapping, found
    prefixes, and drafts."""
    drafter, coded.engine._drafter = coded.engine._drafter, None
    set_loop(coded, **ONE_BY_ONE)
    alone = run_each(coded, ASKED)
    assert counts(coded) == (0, 0, 0)
    for preemption, caches, drafts in (("recompute", True, False), ("swap", False, True)):
        coded.engine._drafter = drafter if drafts else None
        settings = {"preemption": preemption, "enable_prefix_caching": caches}
        set_loop(coded, admission="optimistic", **settings)
        before = counts(coded)
        for _ in range(1 + caches):
            assert run_all(coded, ASKED) == alone
            assert_drained(coded)
        after = counts(coded)
        preempted, hits, accepted = (now - then for now, then in zip(after, before, strict=True))
        assert preempted > 0 and (hits > 0) == caches and (accepted > 0) == drafts


def test_prefill_and_decode_give_the_same_logits(coded: LLM) -> None:
    tokens = [(7 * place) % 320 for place in range(70)]
    whole = coded.logits(tokens)
    np.testing.assert_array_equal(coded.logits(tokens, decode_from=5), whole)
    runner, pages = coded.engine.runner, coded.engine.scheduler.pages
    some = forced_logits(runner, pages, tokens, places=[69, 3])
    np.testing.assert_array_equal(some, whole[[69, 3]])


def test_the_pool_takes_what_was_planned(coded: LLM) -> None:
    """But for the fixed scales of fp8 (the arrays of one axis), which belong to no page."""
    leaves = jax.tree.leaves(coded.engine.runner.cache)
    held = sum(leaf.nbytes for leaf in leaves if leaf.ndim > 1)
    assert held == coded.memory_plan.kv_cache_bytes
    assert sum(leaf.ndim == 1 for leaf in leaves) == (4 if coded.geometry.kv_dtype == "fp8" else 0)


BOUND = 1e-3  # the same numbers, but for single values that fall to the other side of a tie


@pytest.mark.parametrize("prompt", [0, 1])
def test_a_kv_scheme_gives_the_library_s_logits(open_llm: OpenLLM, prompt: int) -> None:
    """compressed-tensors with its scales, its rounded inputs too; and it is another model."""
    folder = DATA / "quant" / "ct_fp8_kv"
    expected = np.load(folder / "expected.npz")
    ids = expected[f"ids{prompt}"].tolist()
    options = {"weights": "packed", "activations": "checkpoint", "kv_cache_dtype": "fp8"}
    with open_llm(folder, max_num_batched_tokens=16, **options) as llm:
        found = llm.logits(ids)
    error = np.abs(found - expected[f"emulated_logits{prompt}"])
    assert error.max() < BOUND and error.mean() < BOUND / 100
    assert np.abs(found - expected[f"logits{prompt}"]).max() > 0.1  # it is another model


KV_SCHEME = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
GROUPS = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 32}}}


def kv_folder(folder: Path, scales: dict[str, float], layers: tuple[int, ...] = (0, 1)) -> Path:
    """TINY, all of it plain, with a KV scheme."""
    extra = {
        f"model.layers.{layer}.self_attn.{name}_scale": np.array([value], ml_dtypes.bfloat16)
        for layer in layers
        for name, value in scales.items()
    }
    config = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": GROUPS,
        "ignore": ["re:.*"],
        "kv_cache_scheme": KV_SCHEME,
    }
    return write_quantized_tiny(folder, config, {}, extra=extra)


def test_calibrated_scales_are_used_or_left_alone(
    open_llm: OpenLLM, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """BB-34 (vllm#54623, #6761, sglang#35455)."""
    ids, options = list(range(20)), {"max_num_batched_tokens": 16}
    plain, scaled = (
        kv_folder(tmp_path / name, scales)
        for name, scales in (("plain", {}), ("scaled", {"k": 0.05, "v": 0.02}))
    )
    found = {}
    for name, folder, kv_dtype in (
        ("float", plain, "auto"),
        ("scales that float pages do not need", scaled, "auto"),
        ("scales", scaled, "fp8"),
        ("ones", plain, "fp8"),
    ):
        caplog.clear()
        with (
            caplog.at_level(logging.WARNING, "jaxinfer"),
            open_llm(folder, kv_cache_dtype=kv_dtype, **options) as llm,
        ):
            found[name] = llm.logits(ids)
            fixed = [np.asarray(leaf) for leaf in jax.tree.leaves(llm.engine.runner.cache)]
        warnings = [record for record in caplog.records if "every scale is 1" in record.message]
        assert len(warnings) == (name == "ones")
        if name == "scales":
            bf16 = [float(ml_dtypes.bfloat16(value)) for value in (0.05, 0.02)]
            held = [leaf.tolist() for leaf in fixed if leaf.ndim == 1]
            assert held == [[bf16[0]] * 2] * 2 + [[bf16[1]] * 2] * 2
    np.testing.assert_array_equal(found["scales that float pages do not need"], found["float"])
    assert not np.array_equal(found["scales"], found["ones"])
    for name in ("scales", "ones"):
        assert 0 < np.abs(found[name] - found["float"]).max() < 0.6 * np.abs(found["float"]).max()


def test_scales_of_some_layers_only_are_refused_by_name(open_llm: OpenLLM, tmp_path: Path) -> None:
    folder = kv_folder(tmp_path, {"k": 0.05, "v": 0.02}, layers=(0,))
    with pytest.raises(CheckpointError, match="lacks those of layer 1"):
        open_llm(folder, kv_cache_dtype="fp8")
