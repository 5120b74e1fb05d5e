"""Whole steps of 8B-class shapes compiled for an H200 that is not here.

Shown from the compiled program: the cache is updated in place, no page array is copied, no packed
matrix is ever decoded whole, kernels do their part without spills, little is held beside the
arguments, and a decode step moves little more than it must.
"""

import functools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxinfer.config.engine_config import engine_config
from jaxinfer.config.geometry import cache_bytes
from jaxinfer.config.targets import gpu_target
from jaxinfer.jobs.hlo_text import Program, count_traffic, parse_program
from jaxinfer.jobs.plan import (
    PlannedEngine,
    decide_engine,
    page_shapes,
    token_bytes_by_layer,
)
from jaxinfer.jobs.plan_records import live_kv_bytes, live_tokens
from jaxinfer.runner.programs import program_sources
from jaxinfer.sampling.slot_state import abstract_loop_state
from tests.support.aot import KernelPlan, compile_kernels, needs_aot, on_target

SLOTS, PREFILL_ROWS, MAX_LEN, DRAFTS = 64, 4, 8192, 4
# Arrays of one float32 a token of the vocabulary and row that drawing may hold at once.
DRAW_COPIES = 2
SLACK_BYTES = 32 * 2**20
MOST_MOVED = 1.10  # of what a decode step must move
MOST_KERNELS = 10  # a layer, in any step
LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
# Layers are alike: twelve of the other families show what all of them would.
MODELS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "qwen3": {
        "model_type": "qwen3",
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 12,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262208,
        "sliding_window": 1024,
        "max_position_embeddings": 131072,
    },
}
VERIFIED_ROWS = 4  # that draft at once, by default
STEPS = {
    "decode": f"decode_step W={SLOTS}",
    "prefill": f"prefill_step R={PREFILL_ROWS}",
    "verify": f"verify_step W={VERIFIED_ROWS}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """An executable with what it was made from."""

    step: str
    engine: PlannedEngine
    executable: Any
    program: Program
    reports: list[KernelPlan]

    @property
    def drawn_rows(self) -> int:
        verified = VERIFIED_ROWS * (DRAFTS + 1)
        return {"decode": SLOTS, "prefill": PREFILL_ROWS, "verify": verified}[self.step]

    @property
    def tokens(self) -> int:
        chunk = self.engine.geometry.chunk_tokens
        return PREFILL_ROWS * chunk if self.step == "prefill" else self.drawn_rows


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    def folder(name: str, num_layers: int) -> Path:
        path = tmp_path_factory.mktemp(name)
        config = MODELS[name] | {"num_hidden_layers": num_layers}
        (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return path

    return functools.cache(folder)


def compile_step(folder: Path, step: str, quantization: str | None) -> Compiled:
    asked = {"method": quantization, "float_ends": 0} if quantization else None
    drafts = {"method": "ngram", "num_speculative_tokens": DRAFTS}
    ask = engine_config(
        max_num_seqs=SLOTS,
        max_model_len=MAX_LEN,
        quantization=asked,
        **({"speculative_config": drafts} if step == "verify" else {}),
    )
    engine = decide_engine(folder, ask, gpu_target("h200"))
    source = program_sources(engine.params, engine.config, engine.geometry)[STEPS[step]]
    source = replace(source, arguments=on_target("h200", source.arguments))
    executable, reports = compile_kernels(source.lower())
    return Compiled(
        step=step,
        engine=engine,
        executable=executable,
        program=parse_program(executable.as_text()),
        reports=reports,
    )


def check(found: Compiled) -> str:
    """Asserts what every step must show, and gives a line that says it in numbers."""
    config, geometry = found.engine.config, found.engine.geometry
    memory, text = found.executable.memory_analysis(), found.executable.as_text()
    state = abstract_loop_state(SLOTS, config.vocab_size)
    state_bytes = sum(leaf.size * 4 for leaf in jax.tree.leaves(state))
    assert memory.alias_size_in_bytes == cache_bytes(config, geometry) + state_bytes
    most = DRAW_COPIES * found.drawn_rows * config.vocab_size * 4 + SLACK_BYTES
    if found.step == "prefill":  # what one layer holds of its tokens
        most += 2 * found.tokens * config.mlp_size * 4
    assert memory.temp_size_in_bytes <= most
    for pages in page_shapes(found.engine):
        shape = f"bf16[{','.join(map(str, pages))}]"
        assert not [line for line in text.splitlines() if " copy(" in line and shape in line]
    attention = [one for one in found.reports if "attention" in one.name]
    assert attention and not [one for one in found.reports if one.spill_bytes]
    assert_packed_stay_packed(found)
    assert 0 < found.program.kernels_of_layer(1) <= MOST_KERNELS
    registers = {
        one.name.removesuffix("_mosaic_gpu_kernel"): one.registers for one in found.reports
    }
    return (
        f"{config.architecture} {found.engine.weights}, {found.step}: {config.num_layers} layers, "
        f"temporaries {memory.temp_size_in_bytes:,}, {found.program.kernels_of_layer(1)} kernels a "
        f"layer, registers {registers}"
    )


def assert_packed_stay_packed(found: Compiled) -> None:
    """Nowhere in the program is there an array of a packed matrix's shape: its codes are half."""
    packed = [leaf for leaf in jax.tree.leaves(found.engine.params) if leaf.dtype == "uint8"]
    codes = {leaf.shape for leaf in packed}
    shapes = {tuple(sorted((outputs, 2 * columns))) for outputs, columns in codes}
    decoded = [
        (one.name, array)
        for lines in found.program.computations.values()
        for one in lines.values()
        for array in one.arrays
        if tuple(sorted(size for size in array.dims if size > 1)) in shapes
        and array.dtype not in ("s4", "u4")  # a view of the codes
        and (array.dtype != "u8" or array.dims not in codes)  # another matrix's codes
    ]
    # A float matrix may have the shape of a packed one; with all of them packed there is none.
    assert not packed or not decoded


def check_traffic(found: Compiled) -> str:
    """A decode step of full rows moves at most a tenth more than weights, live pages and logits."""
    engine = found.engine
    config, geometry = engine.config, engine.geometry
    shapes = page_shapes(engine)
    traffic = count_traffic(found.program, lambda array: array.dims in shapes)
    moved = traffic.num_bytes + sum(
        token_bytes * live_tokens(config, int(layer), SLOTS, MAX_LEN)
        for layer, token_bytes in token_bytes_by_layer(traffic).items()
    )
    weights = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(engine.params))
    if not config.tie_embeddings:
        weights -= config.vocab_size * config.hidden_size * 2
    needed = weights + live_kv_bytes(config, geometry, SLOTS, MAX_LEN)
    needed += SLOTS * config.vocab_size * 4
    assert len(traffic.page_reads) == 2 * config.num_layers
    assert moved <= MOST_MOVED * needed
    return f"moves {moved / needed:.3f} of what it must"


@needs_aot
@pytest.mark.parametrize(
    ("step", "quantization"), [("decode", None), ("decode", "int4"), ("prefill", None)]
)
def test_two_layers_of_an_8b(
    folders: Any, step: str, quantization: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    found = compile_step(folders("llama", 2), step, quantization)
    line = check(found)
    with capsys.disabled():
        print(f"\n{line}")


@needs_aot
@pytest.mark.slow
@pytest.mark.parametrize("quantization", [None, "int4"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("model", MODELS)
def test_whole_steps(
    folders: Any,
    model: str,
    step: str,
    quantization: str | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    layers = MODELS[model]["num_hidden_layers"]
    found = compile_step(folders(model, layers), step, quantization)
    line = check(found)
    if step == "decode":
        line += f", {check_traffic(found)}"
    with capsys.disabled():
        print(f"\n{line}")
