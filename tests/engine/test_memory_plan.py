"""The memory plan's sum and its lines."""

from dataclasses import replace

from jaxinfer.engine.memory_plan import MemoryPlan

PLAN = MemoryPlan(
    weights_bytes=300 * 2**20,
    kv_cache_bytes=2048 * 2**20,
    state_bytes=5 * 2**19,
    temporary_bytes=20 * 2**20,
    free_bytes=8000 * 2**20,
    num_programs=7,
    num_slots=32,
    max_model_len=4096,
    cached_tokens=10240,
)


def test_the_lines_say_where_memory_goes() -> None:
    assert PLAN.needed_bytes == 2370 * 2**20 + 2**19
    assert PLAN.left_bytes == 5629 * 2**20 + 2**19
    where, what = PLAN.lines()
    assert where == (
        "weights 300 MiB, KV cache 2,048 MiB, loop state 2.5 MiB, temporaries 20 MiB "
        "of 8,000 MiB free: 5,630 MiB left"
    )
    assert what == (
        "7 programs, 32 slots, 10240 cached tokens: 2.5 requests of 4096 tokens at once"
    )


def test_what_does_not_fit_is_said_as_missing() -> None:
    short = replace(PLAN, free_bytes=PLAN.needed_bytes - 3 * 2**20)
    assert short.left_bytes == -3 * 2**20
    assert short.lines()[0].endswith(" free: 3.0 MiB missing")
    assert replace(PLAN, free_bytes=PLAN.needed_bytes).lines()[0].endswith(" free: 0 MiB left")
