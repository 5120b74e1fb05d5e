"""Whole steps of a Llama-3.1-8B shape compiled for an H200 that is not here.

Shown from the compiled program: the cache is updated in place, no page array is copied, attention
runs in its kernel, and temporaries stay small.
"""

import re
from dataclasses import dataclass, replace
from typing import Any

import jax
import pytest

from jaxinfer.cache import abstract_cache
from jaxinfer.checkpoint.load import abstract_params
from jaxinfer.config.geometry import Geometry, cache_bytes
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.models.registry import architecture_named
from jaxinfer.runner.batch import abstract_decode_batch, abstract_prefill_batch
from jaxinfer.runner.compile import ProgramSource
from jaxinfer.runner.steps import decode_step, prefill_step
from jaxinfer.sampling.slot_state import LoopState, abstract_loop_state
from tests.support.aot import KernelReport, compile_kernels, needs_aot, on_target
from tests.support.records import geometry, model_config

SLOTS, PREFILL_ROWS, MAX_LEN, PAGE = 64, 4, 8192, 128
# Arrays of one float32 a token of the vocabulary and row that drawing holds at once; the aim is 2.
DRAW_COPIES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """An executable with what it was made from."""

    executable: Any
    reports: list[KernelReport]
    config: ModelConfig
    geometry: Geometry


def abstract_state(config: ModelConfig) -> LoopState:
    return abstract_loop_state(SLOTS, config.vocab_size)


def llama_8b(num_layers: int) -> ModelConfig:
    return model_config(
        windows=(0,) * num_layers,
        vocab_size=128256,
        hidden_size=4096,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        mlp_size=14336,
        max_position=131072,
        attention_scale=128**-0.5,
    )


def h200_geometry(num_layers: int) -> Geometry:
    planned = geometry(
        max_model_len=MAX_LEN,
        page_tokens=PAGE,
        chunk_tokens=128,
        prefill_rows=(1, PREFILL_ROWS),
        num_slots=SLOTS,
        num_pages=(SLOTS * MAX_LEN // PAGE + 1,),
    )
    return replace(
        planned,
        layer_groups=(0,) * num_layers,
        weight_dtype="bfloat16",
        activation_dtype="bfloat16",
        kv_dtype="bfloat16",
        attention_kernel="mosaic",
    )


def compile_step(step: str, num_layers: int) -> Compiled:
    config, planned = llama_8b(num_layers), h200_geometry(num_layers)
    params = abstract_params(config, architecture_named("llama"), planned.weight_dtype)
    function: Any = decode_step
    batch: Any = abstract_decode_batch(planned, SLOTS)
    if step == "prefill":
        function, batch = prefill_step, abstract_prefill_batch(planned, PREFILL_ROWS)
    arguments = (params, abstract_cache(config, planned), abstract_state(config), batch)
    source = ProgramSource(
        function=function,
        arguments=on_target("h200", arguments),
        donate=(1, 2),
        static={"config": config, "geometry": planned},
    )
    executable, reports = compile_kernels(source.lower())
    return Compiled(executable=executable, reports=reports, config=config, geometry=planned)


def num_kernels(text: str, layer: int) -> int:
    """Kernels of one layer in the compiled program."""
    entry = text[text.index("\nENTRY ") :]
    lines = [line for line in entry.splitlines() if f"/layer_{layer}/" in line]
    return sum(1 for line in lines if re.search(r" (fusion|custom-call)\(", line))


def check(step: str, found: Compiled) -> str:
    """Asserts what every step must show, and gives a line that says it in numbers."""
    memory, text = found.executable.memory_analysis(), found.executable.as_text()
    state = sum(leaf.size * 4 for leaf in jax.tree.leaves(abstract_state(found.config)))
    assert memory.alias_size_in_bytes == cache_bytes(found.config, found.geometry) + state
    rows = SLOTS if step == "decode" else PREFILL_ROWS
    tokens = rows if step == "decode" else rows * found.geometry.chunk_tokens
    logits_bytes = rows * found.config.vocab_size * 4
    hidden_bytes = tokens * found.config.mlp_size * 4
    most = DRAW_COPIES * logits_bytes + 2 * hidden_bytes + 32 * 2**20
    assert memory.temp_size_in_bytes <= most
    pages = f"bf16[{found.geometry.num_pages[0]},8,{PAGE},128]"
    copies = [line for line in text.splitlines() if re.search(r" copy(-start)?\(", line)]
    assert not [line for line in copies if pages in line]
    calls = text.count('custom_call_target="mosaic_gpu_v2"')
    assert calls == found.config.num_layers
    assert [one.spill_bytes for one in found.reports] == [0]
    return (
        f"{step}: {found.config.num_layers} layers, temporaries {memory.temp_size_in_bytes:,}, "
        f"{num_kernels(text, 1)} kernels a layer, attention {found.reports[0].registers} registers"
    )


@needs_aot
@pytest.mark.parametrize("step", ["decode", "prefill"])
def test_two_layers_of_an_8b(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = check(step, compile_step(step, 2))
    with capsys.disabled():
        print(f"\n{line}")


@needs_aot
@pytest.mark.slow
@pytest.mark.parametrize("step", ["decode", "prefill"])
def test_a_whole_8b(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = check(step, compile_step(step, 32))
    with capsys.disabled():
        print(f"\n{line}")
