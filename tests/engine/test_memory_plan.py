"""The memory plan's sum and its lines."""

from jaxinfer.engine.memory_plan import MemoryPlan


def test_the_lines_say_where_memory_goes() -> None:
    plan = MemoryPlan(
        weights_bytes=300 * 2**20,
        kv_cache_bytes=2048 * 2**20,
        temporary_bytes=20 * 2**20,
        free_bytes=8000 * 2**20,
        num_programs=7,
        num_slots=32,
        max_model_len=4096,
        cached_tokens=10240,
    )
    assert plan.needed_bytes == 2368 * 2**20
    text = "\n".join(plan.lines())
    assert "weights 300 MiB, KV cache 2,048 MiB, temporaries 20 MiB of 8,000 MiB free" in text
    assert "7 programs, 32 slots, 10240 cached tokens: 2.5 requests of 4096 tokens" in text
