"""The arithmetic of a geometry: pages, budgets, shapes; what does not fit says both numbers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.config.engine_config import EngineConfig
from jaxinfer.config.geometry import (
    CPU_POOL_BYTES,
    Device,
    DraftNeeds,
    Geometry,
    cache_bytes,
    kv_token_bytes,
    pages_needed,
    plan_geometry,
    weights_bytes,
)
from jaxinfer.config.memory_needs import loop_state_bytes
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.config.rope_config import RopeConfig
from jaxinfer.config.speculative_config import DEFAULT_RUNNING, SpeculativeConfig
from jaxinfer.errors import CapacityError, ConfigError
from tests.support.records import model_config

CPU = Device(platform="cpu", free_bytes=1 << 30)
GPU = Device(platform="gpu", free_bytes=1 << 36)


def plan(device: Device = CPU, model: ModelConfig | None = None, **ask: Any) -> Geometry:
    return plan_geometry(EngineConfig(**ask), model or model_config(), device)


@pytest.mark.parametrize(
    ("tokens", "page", "window", "step", "pages"),
    [
        (1, 8, 0, 8, 1),
        (8, 8, 0, 8, 1),
        (9, 8, 0, 8, 2),
        (100, 8, 8, 8, 3),  # 16 tokens may lie across three pages
        (100, 8, 9, 8, 4),
        (20, 8, 1000, 8, 3),  # never more than the request has
        (1000, 16, 512, 256, 49),
    ],
)
def test_pages_needed(tokens: int, page: int, window: int, step: int, pages: int) -> None:
    assert pages_needed(tokens, page, window, step) == pages


@given(
    st.integers(1, 200), st.sampled_from([8, 16, 32]), st.integers(1, 64), st.sampled_from([8, 32])
)
def test_a_window_s_pages_cover_what_any_step_holds(
    tokens: int, page: int, window: int, step: int
) -> None:
    """Counted out: the pages of a step's tokens and of the window before them, at any start."""
    held = [
        -(-min(start + step, tokens) // page) - max(0, start - window + 1) // page
        for start in range(tokens)
    ]
    assert max(held) <= pages_needed(tokens, page, window, step)


def test_a_cpu_s_defaults() -> None:
    made = plan()
    assert (made.num_slots, made.page_tokens, made.chunk_tokens) == (32, 64, 64)
    assert made.prefill_rows == (1, 4) and made.max_prefill_tokens == 256
    assert made.decode_widths == (2, 8, 16, 32)
    assert made.max_model_len == 256 and made.pages_per_row == 4
    assert (made.weight_dtype, made.activation_dtype) == ("bfloat16", "float32")
    assert made.kv_dtype == "float32" and made.num_pages == (4 * 32 + 1,)


def test_a_gpu_s_defaults() -> None:
    made = plan(GPU)
    assert (made.num_slots, made.page_tokens, made.chunk_tokens) == (64, 128, 128)
    assert made.decode_widths == (64,)
    kinds = {made.weight_dtype, made.activation_dtype, made.kv_dtype}
    assert kinds == {"bfloat16"}


@pytest.mark.parametrize(
    ("slots", "widths"),
    [(1, (2,)), (2, (2,)), (3, (2, 3)), (8, (2, 8)), (9, (2, 8, 9)), (64, (2, 8, 16, 64))],
)
def test_decode_widths_end_with_the_slots(slots: int, widths: tuple[int, ...]) -> None:
    made = plan(max_num_seqs=slots)
    assert made.decode_widths == widths and made.num_slots == slots


@pytest.mark.parametrize(
    ("tokens", "rows"), [(None, (1, 4)), (16, (1,)), (31, (1,)), (32, (1, 2)), (128, (1, 4, 8))]
)
def test_prefill_rows(tokens: int | None, rows: tuple[int, ...]) -> None:
    assert plan(prefill_chunk_tokens=16, max_num_batched_tokens=tokens).prefill_rows == rows


def test_a_step_smaller_than_a_chunk_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_num_batched_tokens=63 is less than one chunk of 64"):
        plan(max_num_batched_tokens=63)


@pytest.mark.parametrize(
    ("ask", "length"), [({}, 256), ({"max_model_len": 1}, 1), ({"max_model_len": 256}, 256)]
)
def test_max_model_len(ask: dict[str, Any], length: int) -> None:
    assert plan(**ask).max_model_len == length


def test_max_model_len_is_bounded_by_the_model() -> None:
    with pytest.raises(ConfigError, match="max_model_len=257 is more than the model's 256"):
        plan(max_model_len=257)
    assert plan(model=model_config(max_position=1 << 20)).max_model_len == 8192


def test_a_scaled_rope_may_be_asked_for_its_whole_reach() -> None:
    """What nobody asks for stays what the model was trained for."""
    rope = RopeConfig(scaling="yarn", factor=4.0, original_max_position=256)
    model = model_config(ropes=(rope,))
    assert plan(model=model).max_model_len == 256
    assert plan(model=model, max_model_len=1024).max_model_len == 1024
    with pytest.raises(ConfigError, match="max_model_len=1025 is more than the model's 1024"):
        plan(model=model, max_model_len=1025)


@pytest.mark.parametrize(
    ("dtype", "kv", "device", "expected"),
    [
        ("float32", "auto", CPU, ("float32", "float32", "float32")),
        ("bfloat16", "bfloat16", CPU, ("bfloat16", "float32", "bfloat16")),
        ("float32", "auto", GPU, ("float32", "float32", "float32")),
        ("auto", "float32", GPU, ("bfloat16", "bfloat16", "float32")),
        ("auto", "int8", GPU, ("bfloat16", "bfloat16", "int8")),
        ("float32", "fp8", CPU, ("float32", "float32", "fp8")),
    ],
)
def test_dtypes(dtype: str, kv: str, device: Device, expected: tuple[str, ...]) -> None:
    made = plan(device, dtype=dtype, kv_cache_dtype=kv)
    assert (made.weight_dtype, made.activation_dtype, made.kv_dtype) == expected


def test_layers_that_keep_the_same_tokens_share_a_group() -> None:
    made = plan(model=model_config(windows=(8, 0, 8, 16)), max_model_len=200, block_size=8)
    assert made.group_windows == (0, 8, 16)
    assert made.layer_groups == (1, 0, 1, 2)
    full, narrow, wider = made.num_pages
    assert full == 25 * 32 + 1
    assert narrow == wider == 25 * 32 + 1  # a step of 256 tokens is longer than the request
    made = plan(
        model=model_config(windows=(8, 0)), block_size=8, prefill_chunk_tokens=8, max_num_seqs=2
    )
    assert made.num_pages == (32 * 2 + 1, 6 * 2 + 1)


def test_the_override_is_the_pool_of_every_group() -> None:
    model = model_config(windows=(0, 8))
    ask: dict[str, Any] = {"block_size": 8, "prefill_chunk_tokens": 8, "max_num_seqs": 2}
    assert plan(model=model, num_gpu_blocks_override=40, **ask).num_pages == (41, 41)
    assert plan(model=model, num_gpu_blocks_override=1, **ask).num_pages == (2, 2)


def weights() -> int:
    return weights_bytes(model_config(), "bfloat16")


def held(slots: int, model: ModelConfig | None = None) -> int:
    """What is taken before the first page: weights, and the state of the slots."""
    model = model or model_config()
    return weights_bytes(model, "bfloat16") + loop_state_bytes(slots, model.vocab_size)


def one_request() -> int:
    """Bytes of one request of 256 tokens in two layers, and of the null page of 64."""
    return (256 + 64) * 2 * kv_token_bytes(model_config(), ("float32", "float32"))


def test_bytes_by_hand() -> None:
    attention, mlp, outer = 2 * (4 + 2) * 16 * 64, 3 * 96 * 64, 2 * 320 * 64
    assert weights() == 2 * (2 * (attention + mlp) + outer)
    assert weights_bytes(model_config(tie_embeddings=True), "float32") == 4 * (
        2 * (attention + mlp) + outer // 2
    )
    assert kv_token_bytes(model_config(), ("float32", "float32")) == 2 * 2 * 16 * 4
    assert cache_bytes(model_config(), plan()) == 129 * 64 * 2 * 2 * 2 * 16 * 4


@pytest.mark.parametrize(
    ("kv", "token"), [("int8", 130 + 130), ("fp8", 128 + 128), ("int8_key_only", 130 + 256)]
)
def test_the_same_memory_holds_twice_the_tokens(kv: str, token: int) -> None:
    """Heads of 128: a token and head take 256 + 256 bytes in bfloat16, less the scales half that
    in int8."""
    model = model_config(head_dim=128, max_position=1 << 14)
    device = Device(platform="gpu", free_bytes=1 << 28)
    ask: dict[str, Any] = {"max_model_len": 1 << 14, "max_num_seqs": 64}
    plain, made = plan(device, model, **ask), plan(device, model, kv_cache_dtype=kv, **ask)
    assert kv_token_bytes(model, made.page_kinds) == 2 * token
    ratio = (made.num_pages[0] - 1) / (plain.num_pages[0] - 1)
    assert ratio == pytest.approx(512 / token, rel=0.01)
    page_bytes = cache_bytes(model, made) / made.num_pages[0]
    assert abs(cache_bytes(model, made) - cache_bytes(model, plain)) < 2 * page_bytes + 2 * 2**17


def test_arrays_of_pages() -> None:
    """Small floats as their bits where the place computes in float32."""
    assert plan(kv_cache_dtype="fp8").page_dtypes == ("uint8", "uint8")
    assert plan(GPU, kv_cache_dtype="fp8").page_dtypes == ("float8_e4m3fn", "float8_e4m3fn")
    assert plan(kv_cache_dtype="int8_key_only").page_dtypes == ("int8", "float32")
    assert plan(GPU, kv_cache_dtype="int8_key_only").page_dtypes == ("int8", "bfloat16")
    assert plan(kv_cache_dtype="bfloat16").page_dtypes == ("uint16", "uint16")


def test_exactly_one_request_fits() -> None:
    for slots in (2, 3, 7, 32):
        device = Device(platform="gpu", free_bytes=held(slots) + one_request())
        made = plan(
            device,
            gpu_memory_utilization=1.0,
            kv_cache_dtype="float32",
            block_size=64,
            max_num_seqs=slots,
        )
        assert made.num_pages == (5,)
        assert cache_bytes(model_config(), made) == one_request()


def test_one_byte_less_is_too_little_and_says_so() -> None:
    device = Device(platform="cpu", free_bytes=held(32) + one_request() - 1)
    with pytest.raises(CapacityError) as caught:
        plan(device, gpu_memory_utilization=1.0)
    assert f"{one_request() - 1:,}" in str(caught.value) and f"{one_request():,}" in str(
        caught.value
    )
    assert "lower max_model_len" in str(caught.value)
    assert "gpu_memory_utilization" in str(caught.value)


def test_nothing_is_drafted_where_one_token_is_all() -> None:
    made = plan(max_model_len=1, speculative_config=SpeculativeConfig())
    assert (made.draft_tokens, made.verify_widths) == (0, ())


@pytest.mark.parametrize(
    ("slots", "table", "widths"),
    [(64, None, (DEFAULT_RUNNING,)), (64, ((8, 4), (24, 2), (64, 0)), (24,)), (2, None, (2,))],
)
def test_a_gpu_verifies_no_more_rows_than_may_draft(
    slots: int, table: Any, widths: tuple[int, ...]
) -> None:
    """All slots with all their drafts would take longer to multiply than the weights to read."""
    made = plan(
        GPU, max_num_seqs=slots, speculative_config=SpeculativeConfig(tokens_by_running=table)
    )
    assert made.verify_widths == widths


@pytest.mark.parametrize("free", [0, 1000, weights(), held(32)])
def test_weights_that_do_not_fit_say_both_numbers(free: int) -> None:
    with pytest.raises(CapacityError) as caught:
        plan(Device(platform="cpu", free_bytes=free))
    assert f"{weights():,} bytes" in str(caught.value) and f"{free:,}" in str(caught.value)


@given(st.integers(0, 40_000_000), st.integers(1, 64), st.sampled_from([(0, 0), (0, 16, 16)]))
def test_a_planned_pool_is_within_its_budget(extra: int, slots: int, windows: tuple) -> None:
    model = model_config(windows=windows)
    device = Device(platform="cpu", free_bytes=held(slots, model) + extra)
    try:
        made = plan(device, model, gpu_memory_utilization=1.0, max_num_seqs=slots, block_size=16)
    except CapacityError:
        return
    assert cache_bytes(model, made) <= extra
    step = made.max_prefill_tokens
    for window, count in zip(made.group_windows, made.num_pages, strict=True):
        assert count - 1 >= pages_needed(made.max_model_len, 16, window, step)


def test_a_cpu_s_default_pool_has_a_ceiling() -> None:
    model = model_config(max_position=1 << 20, num_kv_heads=4, head_dim=256)
    made = plan(Device(platform="cpu", free_bytes=1 << 40), model)
    assert CPU_POOL_BYTES * 0.9 < cache_bytes(model, made) <= CPU_POOL_BYTES


def plan_drafting(needs: DraftNeeds, windows: tuple[int, ...] = (0, 0), **ask: Any) -> Geometry:
    return plan_geometry(EngineConfig(**ask), model_config(windows=windows), GPU, drafts=needs)


@pytest.mark.parametrize(
    ("windows", "draft_windows", "groups"),
    [
        ((0, 0), (0, 0, 0), (0, 0, 0)),
        ((0, 0), (16, 0), (0, 0)),  # what is kept for ever is there for a window, too
        ((0, 32, 64), (0, 16, 32, 33, 64, 65), (0, 1, 1, 2, 2, 0)),
    ],
)
def test_a_draft_model_s_layers_take_the_narrowest_group_that_serves(
    windows: tuple[int, ...], draft_windows: tuple[int, ...], groups: tuple[int, ...]
) -> None:
    draft = model_config(windows=draft_windows)
    made = plan_drafting(DraftNeeds(model=draft), windows)
    assert made.draft_layer_groups == groups
    assert made.cache_groups == made.layer_groups + groups


def test_a_draft_model_that_looks_back_further_is_refused() -> None:
    with pytest.raises(ConfigError, match="the draft model looks back without limit"):
        plan_drafting(DraftNeeds(model=model_config(windows=(0,))), windows=(32,))


def test_pages_and_weights_of_a_draft_model_are_planned() -> None:
    """The pool holds fewer pages: those of both models come from one budget."""
    draft = model_config(windows=(0,))  # half as many layers
    small = Device(platform="gpu", free_bytes=1 << 28)
    alone, both = (
        plan_geometry(EngineConfig(max_num_seqs=10_000), model_config(), small, drafts=needs)
        for needs in (DraftNeeds(), DraftNeeds(num_floats=1 << 20, packed_bytes=5, model=draft))
    )
    assert both.num_pages[0] == pytest.approx(alone.num_pages[0] / 1.5, rel=0.02)
    assert cache_bytes(model_config(), both, draft) <= cache_bytes(model_config(), alone)
    assert cache_bytes(model_config(), both, draft) == 1.5 * cache_bytes(model_config(), both)
