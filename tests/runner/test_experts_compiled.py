"""Whole steps of a Qwen3-30B-A3B shape compiled for an H200 that is not here.

Shown from the compiled program: every matrix product of experts runs in the kernel, which reads
only matrices that rows have chosen; no stack is copied, and temporaries stay small.
"""

import json
import re
from dataclasses import replace
from pathlib import Path

import jax
import pytest

from jaxinfer.config.engine_config import engine_config
from jaxinfer.config.geometry import cache_bytes
from jaxinfer.config.targets import gpu_target
from jaxinfer.jobs.plan import decide_engine
from jaxinfer.runner.programs import program_sources
from jaxinfer.sampling.slot_state import abstract_loop_state
from tests.support.aot import compile_kernels, needs_aot, on_target

LAYERS, SLOTS, PREFILL_ROWS = 2, 64, 4
CONFIG = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "rope_theta": 1000000.0,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
}
# Of one expert's 64 places: rows and outputs, in bfloat16 and float32, and what lies between.
PLACE_BYTES = 6 * CONFIG["hidden_size"] + 12 * CONFIG["moe_intermediate_size"]
DRAW_COPIES = 6


@needs_aot
@pytest.mark.parametrize("step", ["decode", pytest.param("prefill", marks=pytest.mark.slow)])
def test_two_layers_of_a_30b_a3b(
    step: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    ask = engine_config(max_num_seqs=SLOTS, max_model_len=4096)
    engine = decide_engine(tmp_path, ask, gpu_target("h200"))
    assert engine.geometry.expert_kernel == "mosaic"
    rows = {"decode": SLOTS, "prefill": PREFILL_ROWS * engine.geometry.chunk_tokens}[step]
    name = {"decode": f"decode_step W={SLOTS}", "prefill": f"prefill_step R={PREFILL_ROWS}"}[step]
    source = program_sources(engine.params, engine.config, engine.geometry)[name]
    source = replace(source, arguments=on_target("h200", source.arguments))
    executable, reports = compile_kernels(source.lower())
    memory, text = executable.memory_analysis(), executable.as_text()
    state = abstract_loop_state(SLOTS, engine.config.vocab_size)
    state_bytes = sum(leaf.size * 4 for leaf in jax.tree.leaves(state))
    cache = cache_bytes(engine.config, engine.geometry)
    assert memory.alias_size_in_bytes == cache + state_bytes
    kernels = [one.name for one in reports if "grouped_matmul" in one.name]
    assert kernels and not [one for one in reports if one.spill_bytes]
    calls = [line for line in text.splitlines() if 'custom_call_target="mosaic_gpu_v2"' in line]
    named = "\n".join(re.findall(r'op_name="([^"]*)"', "\n".join(calls)))
    assert named.count("/grouped_matmul/") == LAYERS * 3  # gate, up and down
    assert named.count("_attention/") == LAYERS
    stack = re.compile(r"(bf16|u16|f32)\[128,(768,2048|2048,768)\]\S* (copy|convert|fusion)\(")
    assert not stack.search(text)
    made = rows * 8 * CONFIG["hidden_size"] * 4  # of every choice, float32
    drawn = DRAW_COPIES * min(rows, SLOTS) * CONFIG["vocab_size"] * 4
    most = 128 * 64 * PLACE_BYTES + 3 * made + drawn + 32 * 2**20
    assert memory.temp_size_in_bytes <= most
    with capsys.disabled():
        print(f"\n{step}: temporaries {memory.temp_size_in_bytes:,} of {most:,} allowed")
