"""Option names and values: the wrong ones are refused with the value, the rule and the way out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxinfer.config.engine_config import EngineConfig, engine_config
from jaxinfer.errors import ConfigError, UnsupportedError

WRONG = [
    *(("dtype", value) for value in ("float16", "int8", None, 32, np.dtype("float32"))),
    *(("kv_cache_dtype", value) for value in ("int4", "fp8_e5m2", "INT8", 8, None)),
    *(("admission", value) for value in ("pessimistic", None)),
    *(("kernels", value) for value in ("pallas", None, {"attention": "reference"}, ["mosaic"])),
    *(("max_model_len", value) for value in (0, -1, 2.0, "8", True)),
    *(("max_num_seqs", value) for value in (0, -3, 1.5, "1", False)),
    *(("num_gpu_blocks_override", value) for value in (0, -1, "all")),
    *(("max_num_batched_tokens", value) for value in (0, -1, 8.0)),
    *(("block_size", value) for value in (0, 1, 4, 12, 2048, -16, 16.0, "16", True)),
    *(("prefill_chunk_tokens", value) for value in (0, 4, 100, 2048, 64.0, "64")),
    *(
        ("gpu_memory_utilization", value)
        for value in (0, -0.1, 1.01, float("nan"), float("inf"), "0.9", None, True)
    ),
    *(("seed", value) for value in (-1, 2**63, 0.5, "7", True)),
    *(("strict", value) for value in ("no", 0, None)),
    *(("compilation_cache_dir", value) for value in (5, True, ["x"], "")),
    *(("trace", value) for value in (False, True, 3, "")),
    *(("preemption", value) for value in ("drop", None, True)),
    *(("scheduling_policy", value) for value in ("lifo", None)),
    *(("logprobs_mode", value) for value in ("logits", None)),
    *(("num_decode_steps", value) for value in (0, 65, 2.0, "4", True, None)),
    *(("max_prefill_steps", value) for value in (0, -1, 1.5, None)),
    *(("max_logprobs", value) for value in (-1, 21, 5.0, None)),
    *(("long_prefill_token_threshold", value) for value in (0, -1, 64.0)),
    *(("max_num_waiting", value) for value in (0, -1, 2.5)),
    *(("latency_max_num_seqs", value) for value in (-1, 1.0, True)),
    *(
        (name, value)
        for name in (
            *("enable_prefix_caching", "enable_chunked_prefill", "async_scheduling"),
            "use_generation_config",
        )
        for value in (None, 1, "yes")
    ),
]
RIGHT = [
    *(("dtype", value) for value in ("auto", "bfloat16", "float32")),
    *(("kv_cache_dtype", value) for value in ("auto", "bfloat16", "float32")),
    *(("kernels", value) for value in ("auto", "reference", "mosaic", "rms_norm=xla")),
    *(("kv_cache_dtype", value) for value in ("int8", "fp8", "int8_key_only")),
    *(("block_size", value) for value in (None, 8, 256, 1024)),
    *(("prefill_chunk_tokens", value) for value in (None, 8, 1024)),
    *(("gpu_memory_utilization", value) for value in (1, 1.0, 0.01)),
    *(("seed", value) for value in (None, 0, 2**63 - 1)),
    *(("compilation_cache_dir", value) for value in (None, "auto", "folder", Path("folder"))),
    *(("max_model_len", value) for value in (None, 1, 1 << 40)),
    ("strict", True),
    *(("admission", value) for value in ("reserve", "optimistic")),
    *(("preemption", value) for value in ("swap", "recompute")),
    *(("scheduling_policy", value) for value in ("fcfs", "priority")),
    *(("logprobs_mode", value) for value in ("raw", "processed")),
    *(("num_decode_steps", value) for value in (1, 64)),
    *(("max_prefill_steps", value) for value in (1, 1000)),
    *(("max_logprobs", value) for value in (0, 20)),
    *(("long_prefill_token_threshold", value) for value in (None, 1)),
    *(("max_num_waiting", value) for value in (None, 1)),
    *(("latency_max_num_seqs", value) for value in (None, 0, 3)),
    *(("trace", value) for value in (None, "loop.json", Path("loop.json"))),
    *(("enable_prefix_caching", value) for value in (False, True)),
    *(("enable_chunked_prefill", value) for value in (False, True)),
    *(("async_scheduling", value) for value in (False, True)),
    ("use_generation_config", True),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_wrong_value_is_refused_with_its_name_and_value(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        engine_config(**{name: value})
    assert str(caught.value).startswith(f"{name}={value!r} must be ")
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(("name", "value"), RIGHT)
def test_a_right_value_is_kept(name: str, value: Any) -> None:
    assert getattr(engine_config(**{name: value}), name) == value


def test_nothing_asked_is_the_default() -> None:
    ask = engine_config()
    assert ask == EngineConfig()
    assert ask.enable_prefix_caching and ask.async_scheduling and ask.enable_chunked_prefill
    assert (ask.num_decode_steps, ask.max_prefill_steps, ask.max_logprobs) == (1, 1, 20)
    assert (ask.admission, ask.preemption, ask.scheduling_policy) == (
        *("reserve", "recompute", "fcfs"),
    )
    assert ask.logprobs_mode == "raw" and not ask.use_generation_config
    limits = ("long_prefill_token_threshold", "max_num_waiting", "latency_max_num_seqs", "trace")
    assert [getattr(ask, name) for name in limits] == [None] * 4


def test_a_wrong_cache_lists_what_is_allowed() -> None:
    names = "'auto', 'bfloat16', 'float32', 'int8', 'fp8', 'int8_key_only'"
    with pytest.raises(ConfigError, match=f"kv_cache_dtype='int4' must be one of {names}"):
        engine_config(kv_cache_dtype="int4")


def test_a_number_over_the_ceiling_is_refused_with_the_ceiling() -> None:
    with pytest.raises(ConfigError, match=r"max_logprobs=21 must be an int in \[0, 20\]"):
        engine_config(max_logprobs=21)
    with pytest.raises(ConfigError, match=r"num_decode_steps=65 must be an int in \[1, 64\]"):
        engine_config(num_decode_steps=65)


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("max_model_length", "max_model_len"),
        ("max_num_seq", "max_num_seqs"),
        ("blocksize", "block_size"),
        ("prefill_chunk", "prefill_chunk_tokens"),
        ("enable_prefix_cache", "enable_prefix_caching"),
        ("speculative_conf", "speculative_config"),
    ],
)
def test_an_unknown_name_offers_the_nearest(wrong: str, near: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown option '{wrong}'; did you mean '{near}'[?]"):
        engine_config(**{wrong: 1})


def test_an_unknown_name_like_no_other_lists_them_all() -> None:
    with pytest.raises(
        ConfigError, match="unknown option 'zzz'; known options: activations, "
    ) as e:
        engine_config(zzz=1)
    assert "did you mean" not in str(e.value)
    assert all(name in str(e.value) for name in EngineConfig.__slots__)


@pytest.mark.parametrize("name", ["enable_lora"])
def test_what_is_not_built_yet_is_refused_by_name(name: str) -> None:
    with pytest.raises(
        UnsupportedError, match=f"{name}='x' asks for .*not built yet; leave {name} out"
    ):
        engine_config(**{name: "x"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enable_lora", False),
    ],
)
def test_a_planned_option_that_asks_for_nothing_is_taken(name: str, value: Any) -> None:
    assert engine_config(**{name: value}) == engine_config()
