"""Whole steps of a Qwen3-30B-A3B shape compiled for an H200 that is not here.

Shown from the compiled program: every matrix product of experts runs in the kernel, which reads
only matrices that rows have chosen; no stack is copied, and temporaries stay small.
"""

import re
from dataclasses import replace
from typing import Any

import jax
import pytest

from jaxinfer.cache import abstract_cache
from jaxinfer.checkpoint.load import abstract_params
from jaxinfer.config.expert_config import ExpertConfig
from jaxinfer.config.geometry import Geometry, cache_bytes
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.layers.expert_rounds import choose_expert_kernel
from jaxinfer.models.registry import architecture_named
from jaxinfer.runner.batch import abstract_decode_batch, abstract_prefill_batch
from jaxinfer.runner.compile import ProgramSource
from jaxinfer.runner.steps import decode_step, prefill_step
from jaxinfer.sampling.slot_state import abstract_loop_state
from pallas_kernels.dispatch import Platform
from tests.support.aot import compile_kernels, needs_aot, on_target
from tests.support.records import geometry, model_config

LAYERS, SLOTS, PREFILL_ROWS, CHUNK, PAGE = 2, 64, 4, 128, 128
HOPPER = Platform(kind="gpu", compute_capability=(9, 0))


def qwen3_30b_a3b() -> ModelConfig:
    return model_config(
        architecture="qwen3_moe",
        windows=(0,) * LAYERS,
        vocab_size=151936,
        hidden_size=2048,
        num_heads=32,
        num_kv_heads=4,
        head_dim=128,
        mlp_size=6144,
        max_position=40960,
        attention_scale=128**-0.5,
        qk_norm=True,
        experts=ExpertConfig(
            num_experts=128,
            num_chosen=8,
            mlp_size=768,
            renormalizes=True,
            is_sparse=(True,) * LAYERS,
        ),
    )


def h200_geometry(config: ModelConfig) -> Geometry:
    planned = replace(
        geometry(
            max_model_len=4096,
            page_tokens=PAGE,
            chunk_tokens=CHUNK,
            prefill_rows=(1, PREFILL_ROWS),
            num_slots=SLOTS,
            num_pages=(SLOTS * 4096 // PAGE + 1,),
        ),
        layer_groups=(0,) * LAYERS,
        weight_dtype="bfloat16",
        activation_dtype="bfloat16",
        kv_dtype="bfloat16",
        attention_kernel="auto",
    )
    kernel = choose_expert_kernel(planned, config, HOPPER)
    return replace(planned, attention_kernel="mosaic", expert_kernel=kernel)


@needs_aot
@pytest.mark.parametrize("step", ["decode", "prefill"])
def test_two_layers_of_a_30b_a3b(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    config = qwen3_30b_a3b()
    planned = h200_geometry(config)
    assert planned.expert_kernel == "mosaic"
    params = abstract_params(config, architecture_named("qwen3_moe"), "bfloat16")
    function: Any = decode_step
    batch: Any = abstract_decode_batch(planned, SLOTS)
    if step == "prefill":
        function, batch = prefill_step, abstract_prefill_batch(planned, PREFILL_ROWS)
    state = abstract_loop_state(SLOTS, config.vocab_size)
    arguments = (params, abstract_cache(config, planned), state, batch)
    source = ProgramSource(
        function=function,
        arguments=on_target("h200", arguments),
        donate=(1, 2),
        static={"config": config, "geometry": planned},
    )
    executable, reports = compile_kernels(source.lower())
    memory, text = executable.memory_analysis(), executable.as_text()
    state_bytes = sum(leaf.size * 4 for leaf in jax.tree.leaves(state))
    assert memory.alias_size_in_bytes == cache_bytes(config, planned) + state_bytes
    calls = text.count('custom_call_target="mosaic_gpu_v2"')
    assert calls == LAYERS * (1 + 3)  # attention; gate, up and down
    assert [one.spill_bytes for one in reports] == [0] * len(reports)
    stack = re.compile(r"(bf16|u16|f32)\[128,(768,2048|2048,768)\]\S* (copy|convert|fusion)\(")
    assert not stack.search(text)
    # What experts read and make of one layer at a time: [experts, places, width and mlp].
    places = 64 if step == "decode" else 64
    rows = 128 * places
    made = SLOTS if step == "decode" else PREFILL_ROWS * CHUNK
    most = rows * (2048 * 6 + 768 * 12) + made * 8 * 2048 * 12 + 6 * made * 151936 * 4
    assert memory.temp_size_in_bytes <= most
    with capsys.disabled():
        print(f"\n{step}: temporaries {memory.temp_size_in_bytes:,} of {most:,} allowed")
