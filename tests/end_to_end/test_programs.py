"""Contract of compiled programs: what they alias, how many there are, and that none is added."""

from pathlib import Path
from typing import Any

import jax
import pytest

from jaxinfer import LLM, RequestOptions, SamplingParams
from jaxinfer.runner.compile import CompileLog, counted_compiles
from tests.end_to_end.conftest import OpenLLM
from tests.end_to_end.engines import WINDOWED, run, set_loop
from tests.end_to_end.random_requests import random_requests, run_all
from tests.support.byte_tokenizer import byte_tokenizer
from tests.support.tiny_models import write_tiny

MAX_PROGRAMS = 8  # for the demo, which runs with eight slots
TEMPLATE = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
# A pool that dwarfs the temporaries of a step on it, of which the draw's alone are 0.26 MB.
BIG_POOL: dict[str, Any] = {
    "max_num_seqs": 2,
    "max_num_batched_tokens": 16,
    "block_size": 256,
    "num_gpu_blocks_override": 100,
}
FIRST_LAYER: dict[str, Any] = {"method": "self", "num_layers": 1}
DRAFTING = {"draft_step", "verify_step"}
SWAPPING: dict[str, Any] = {"admission": "optimistic", "preemption": "swap"}


def step_programs(llm: LLM) -> dict[str, Any]:
    named = llm.engine.runner.programs.named()
    return {name: program for name, program in named.items() if "_step " in name}


def num_bytes(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ({}, set()),
        ({"kv_cache_dtype": "int8", "speculative_config": FIRST_LAYER}, DRAFTING),
        pytest.param(
            {"kv_cache_dtype": "fp8", "speculative_config": FIRST_LAYER},
            DRAFTING,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_every_program_aliases_exactly_what_it_donates(
    open_llm: OpenLLM, tmp_path: Path, options: dict[str, Any], more: set[str]
) -> None:
    """Steps the cache and the loop state, the others what they change: no array is copied."""
    folder = write_tiny(tmp_path, **WINDOWED)
    with open_llm(folder, max_num_batched_tokens=16, **SWAPPING, **options) as llm:
        runner = llm.engine.runner
        cache, state = num_bytes(runner.cache), num_bytes(runner.state)
        small = {"init": 0, "head": 0, "swap_out": 0}
        small |= {"seat": state, "copy": cache, "swap_in": cache}
        wanted = {f"{name}_step": size for name, size in small.items()}
        for name in step_programs(llm):
            wanted[name] = cache + (0 if name.startswith("draft_step") else state)
        kinds = {name.split()[0] for name in step_programs(llm)}
        assert kinds == {"prefill_step", "decode_step"} | more
        aliased = {
            name: program.memory_analysis().alias_size_in_bytes
            for name, program in runner.programs.named().items()
        }
        assert aliased == wanted


@pytest.mark.parametrize(
    "kv_cache_dtype",
    [
        *("float32", "bfloat16"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("int8", "fp8", "int8_key_only")),
    ],
)
def test_no_step_has_a_second_cache(open_llm: OpenLLM, tmp_path: Path, kv_cache_dtype: str) -> None:
    """Two cache groups; a scatter that is widened would need a copy of the pages."""
    folder = write_tiny(tmp_path, **WINDOWED, max_position_embeddings=4096)
    with open_llm(folder, **BIG_POOL, **SWAPPING, kv_cache_dtype=kv_cache_dtype) as llm:
        largest = max(leaf.nbytes for leaf in jax.tree.leaves(llm.engine.runner.cache.keys))
        for name, program in llm.engine.runner.programs.named().items():
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


def test_starting_compiles_the_programs_and_nothing_is_compiled_after_it(
    open_llm: OpenLLM, tiny_folder: Path
) -> None:
    """Eager operations would count too; a program from the persistent cache counts.

    Afterwards come all parameters and lengths, chats, streams, scores and logits, and every way in
    and out of a slot.
    """
    tokenizer = byte_tokenizer(chat_templates={"default": TEMPLATE})
    few = {"max_num_seqs": 8, "max_model_len": 160, "block_size": 8, "num_gpu_blocks_override": 20}
    with (
        counted_compiles(CompileLog()) as log,
        open_llm(tiny_folder, fresh=True, tokenizer=tokenizer, **few, **SWAPPING) as llm,
    ):
        num_programs = len(llm.engine.runner.programs.named())
        assert log.num_compiles == llm.get_metrics()["num_compiles"] == num_programs
        use_in_every_way(llm)
        assert log.num_compiles == num_programs
        assert llm.get_metrics()["num_compiles"] == llm.get_metrics()["num_programs"]


def use_in_every_way(llm: LLM) -> None:
    asked = random_requests(5, 24)
    for count, preemption in ((1, "swap"), (24, "swap"), (11, "recompute"), (24, "recompute")):
        set_loop(llm, preemption=preemption, num_decode_steps=4 if count == 24 else 1)
        before = llm.get_metrics()
        assert not any(error for error, *_ in run_all(llm, asked[:count]))
        counts = {name: value - before[name] for name, value in llm.get_metrics().items()}
        assert count < 24 or (counts["num_preemptions"] > 0 and counts["prefix_cache_hits"] > 0)
    use_every_method(llm)


def use_every_method(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hi"}]
    params = SamplingParams(max_tokens=3)
    assert llm.chat(messages, params, use_tqdm=False)[0].error is None
    assert list(llm.chat_stream(messages, params))
    many = SamplingParams(n=3, max_tokens=30, logit_bias={5: 1.0}, prompt_logprobs=2, logprobs=20)
    next(iter(llm.stream(["abandoned"], many)))
    hurried = RequestOptions(timeout_s=1e-9, latency_sensitive=True)
    (late,) = llm.generate(["late"], many, options=hurried, use_tqdm=False)
    assert late.outputs[0].stop_reason == "timeout"
    assert llm.score([[1] * 160, [2], "abc"], use_tqdm=False)[0].error is None
    llm.reset_prefix_cache()
    for length in (1, 16, 33, 70):
        llm.logits([7] * length)
        llm.logits([7] * length, decode_from=max(1, length - 3))
    assert run(llm, [[]])[0].error is not None
