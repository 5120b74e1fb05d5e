"""Contract of compiled programs: what they alias, how many there are, and that none is added."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxinfer import LLM, SamplingParams
from jaxinfer.runner.compile import CompileLog, counted_compiles
from tests.end_to_end.conftest import OpenLLM
from tests.end_to_end.engines import WINDOWED, run
from tests.support.byte_tokenizer import byte_tokenizer
from tests.support.tiny_models import write_tiny

MAX_PROGRAMS = 8  # for the demo, which runs with eight slots
TEMPLATE = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
# A pool that dwarfs the temporaries of a step on it.
BIG_POOL: dict[str, Any] = {"max_num_seqs": 2, "max_num_batched_tokens": 16, "block_size": 256}


def step_programs(llm: LLM) -> dict[str, Any]:
    named = llm.engine.runner.programs.named()
    return {name: program for name, program in named.items() if "_step " in name}


def donated_bytes(llm: LLM) -> int:
    runner = llm.engine.runner
    return sum(leaf.nbytes for leaf in jax.tree.leaves((runner.cache, runner.state)))


def check_aliases(llm: LLM) -> None:
    steps = step_programs(llm)
    assert {name.split("_")[0] for name in steps} == {"prefill", "decode"}
    for name, program in steps.items():
        assert program.memory_analysis().alias_size_in_bytes == donated_bytes(llm), name


def test_every_step_aliases_exactly_the_cache_and_the_loop_state(tiny: LLM) -> None:
    check_aliases(tiny)
    others = set(tiny.engine.runner.programs.named()) - set(step_programs(tiny))
    for name in others:
        program = tiny.engine.runner.programs.named()[name]
        assert program.memory_analysis().alias_size_in_bytes == 0, name


@pytest.mark.parametrize("kv_cache_dtype", ["float32", "bfloat16"])
def test_no_step_has_a_second_cache(open_llm: OpenLLM, tmp_path: Path, kv_cache_dtype: str) -> None:
    """Two cache groups; a scatter that is widened would need a copy of the pages."""
    folder = write_tiny(tmp_path, **WINDOWED, max_position_embeddings=4096)
    with open_llm(folder, **BIG_POOL, kv_cache_dtype=kv_cache_dtype) as llm:
        check_aliases(llm)
        largest = max(leaf.nbytes for leaf in llm.engine.runner.cache.keys)
        for name, program in step_programs(llm).items():
            assert program.memory_analysis().temp_size_in_bytes < largest // 2, name


def test_a_step_consumes_the_cache_it_is_given(tiny: LLM) -> None:
    before = jax.tree.leaves((tiny.engine.runner.cache, tiny.engine.runner.state))
    run(tiny, [[1, 2, 3]])
    assert all(leaf.is_deleted() for leaf in before)


def test_eight_slots_need_at_most_eight_programs(tiny: LLM) -> None:
    assert tiny.geometry.num_slots == 8
    num_programs = len(tiny.engine.runner.programs.named())
    assert num_programs <= MAX_PROGRAMS
    assert tiny.get_metrics()["num_programs"] == num_programs


def test_starting_compiles_the_programs_and_nothing_else(
    open_llm: OpenLLM, tiny_folder: Path
) -> None:
    """Eager operations would count too; a program from the persistent cache counts."""
    with counted_compiles(CompileLog()) as log, open_llm(tiny_folder, max_num_seqs=8) as llm:
        num_programs = len(llm.engine.runner.programs.named())
        assert log.num_compiles == num_programs
        assert llm.get_metrics()["num_compiles"] == num_programs


def test_nothing_is_compiled_after_the_start(open_llm: OpenLLM, tiny_folder: Path) -> None:
    """Lengths, parameters, samples, log-probabilities, chats, streams and logits vary."""
    tokenizer = byte_tokenizer(chat_templates={"default": TEMPLATE})
    with open_llm(tiny_folder, max_num_seqs=8, tokenizer=tokenizer) as llm:
        with counted_compiles(CompileLog()) as log:
            use_in_every_way(llm)
        assert log.num_compiles == 0
        named = llm.engine.runner.programs.named()
        assert llm.get_metrics()["num_compiles"] == len(named)


def use_in_every_way(llm: LLM) -> None:
    numbers = np.random.default_rng(0)
    for count in (1, 2, 3, 8, 11):
        lengths = numbers.integers(1, 120, count)
        prompts = [numbers.integers(0, 320, length).tolist() for length in lengths]
        params = [varied_params(place + count) for place in range(count)]
        assert all(output.error is None for output in run(llm, prompts, params))
    messages = [{"role": "user", "content": "hi"}]
    params = SamplingParams(max_tokens=3)
    assert llm.chat(messages, params, use_tqdm=False)[0].error is None
    assert list(llm.chat_stream(messages, params))
    next(iter(llm.stream(["abandoned"], params)))
    for length in (1, 16, 33, 70):
        llm.logits(prompts[0][:1] * length)
        llm.logits(prompts[0][:1] * length, decode_from=max(1, length - 3))
    assert run(llm, [[]])[0].error is not None


def varied_params(place: int) -> SamplingParams:
    ways: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0, "logprobs": 5},
        {"temperature": 0.3, "top_k": 7},
        {"temperature": 1.7, "top_p": 0.4, "min_p": 0.1, "seed": 5},
        {"temperature": 1.0, "n": 3, "logprobs": 0, "stop": ["zz"], "max_tokens": None},
    ]
    return SamplingParams(**({"max_tokens": 1 + place} | ways[place % len(ways)]))
