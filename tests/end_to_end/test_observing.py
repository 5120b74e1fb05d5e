"""What can be seen of a running engine: metrics, the timeline of the loop, profiles."""

import json
from collections import Counter
from pathlib import Path

import pytest

from jaxinfer import LLM, SamplingParams
from jaxinfer.errors import ConfigError, JaxInferError
from tests.end_to_end.conftest import OpenLLM
from tests.end_to_end.engines import GREEDY, run

ONE_PROGRAM = {"max_num_batched_tokens": 16}
COUNTS_AND_GAUGES = (
    *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"),
    *("prefix_cache_queries", "prefix_cache_hits", "num_preemptions"),
    *("prompt_tokens", "generation_tokens", "num_compiles", "compile_seconds"),
)
TIMES = (
    *("time_to_first_token_seconds", "time_per_output_token_seconds"),
    *("inter_token_latency_seconds", "e2e_request_latency_seconds"),
    *("request_queue_time_seconds", "request_prefill_time_seconds"),
    "request_decode_time_seconds",
)


def test_every_metric_has_its_name(tiny: LLM) -> None:
    metrics = tiny.get_metrics()
    assert set(COUNTS_AND_GAUGES) <= set(metrics)
    for name in TIMES:
        assert {f"{name}_sum", f"{name}_count", f'{name}_bucket{{le="+Inf"}}'} <= set(metrics)
    for reason in ("stop", "length", "abort", "error"):
        assert f'request_success{{finished_reason="{reason}"}}' in metrics
    assert all(isinstance(value, float) for value in metrics.values())


def test_metrics_add_up(tiny: LLM) -> None:
    """Counts of requests, tokens and gaps; the sums of times are those of the outputs."""
    before = tiny.get_metrics()
    params = [SamplingParams(temperature=0, max_tokens=most, ignore_eos=True) for most in (1, 4, 9)]
    outputs = run(tiny, [[1, 2], [3] * 20, [4]], params)
    counts = {name: value - before[name] for name, value in tiny.get_metrics().items()}
    assert (counts["prompt_tokens"], counts["generation_tokens"]) == (23, 14)
    assert counts["time_to_first_token_seconds_count"] == 3
    assert counts["inter_token_latency_seconds_count"] == 0 + 3 + 8
    assert counts["time_per_output_token_seconds_count"] == 2  # one token has no gap
    assert counts["e2e_request_latency_seconds_count"] == 3
    for name, field in (
        ("time_to_first_token_seconds", "time_to_first_token_s"),
        ("e2e_request_latency_seconds", "e2e_latency_s"),
        ("request_queue_time_seconds", "queue_time_s"),
        ("request_prefill_time_seconds", "prefill_time_s"),
        ("request_decode_time_seconds", "decode_time_s"),
    ):
        total = sum(getattr(output.metrics, field) for output in outputs)
        assert counts[f"{name}_sum"] == pytest.approx(total), name
    for output, most in zip(outputs, (1, 4, 9), strict=True):
        times = output.metrics
        parts = (times.queue_time_s, times.prefill_time_s, times.decode_time_s)
        assert None not in parts and all(part >= 0 for part in parts)  # type: ignore[operator]
        assert sum(parts) == pytest.approx(times.e2e_latency_s)  # type: ignore[arg-type]
        assert times.num_generation_tokens == most
        if most > 1 and times.decode_time_s is not None:
            per_token = times.decode_time_s / (most - 1)
            assert times.time_per_output_token_s == pytest.approx(per_token)
    gauges = tiny.get_metrics()
    assert gauges["num_requests_running"] == gauges["kv_cache_usage_perc"] == 0


def test_the_trace_is_a_timeline_of_the_loop(
    open_llm: OpenLLM, tiny_folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "loop.json"
    with open_llm(tiny_folder, **ONE_PROGRAM, trace=str(path)) as llm:
        run(llm, [[1, 2, 3], list(range(40))])
        steps = llm.get_metrics()
        while_open = json.loads(path.read_text().rstrip().rstrip(",") + "]")
        assert isinstance(while_open, list)
    events = [event for event in json.loads(path.read_text()) if event["ph"] == "X"]
    names = Counter(event["name"] for event in events)
    assert names["prefill"] == steps["num_prefill_steps"] == 4
    assert names["decode"] == steps["num_decode_steps"]
    assert names["launch"] == names["read"] == names["text"] == names["prefill"] + names["decode"]
    assert names["schedule"] >= names["launch"]
    assert all(event["dur"] >= 0 for event in events)


def test_a_trace_that_cannot_be_written_is_refused_and_nothing_is_left(
    open_llm: OpenLLM, tiny_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        open_llm(tiny_folder, **ONE_PROGRAM, trace=str(tmp_path / "none" / "loop.json"))


def test_a_profile_names_steps_and_layers(tiny: LLM, tmp_path: Path) -> None:
    tiny.start_profile(tmp_path)
    with pytest.raises(JaxInferError, match="call stop_profile first"):
        tiny.start_profile(tmp_path)
    run(tiny, [[1, 2, 3]], SamplingParams(temperature=0, max_tokens=3, min_tokens=2))
    tiny.stop_profile()
    with pytest.raises(JaxInferError, match="call start_profile first"):
        tiny.stop_profile()
    content = b"".join(path.read_bytes() for path in tmp_path.rglob("*.xplane.pb"))
    for name in ("prefill_step", "decode_step", "seat_step", "layer_0", "layer_1", "head", "draw"):
        assert name.encode() in content, name


def test_closing_ends_a_profile(open_llm: OpenLLM, tiny_folder: Path, tmp_path: Path) -> None:
    with open_llm(tiny_folder, **ONE_PROGRAM) as llm:
        llm.start_profile(tmp_path)
        run(llm, [[1]], GREEDY)
    assert list(tmp_path.rglob("*.xplane.pb"))
    for use in (lambda: llm.start_profile(tmp_path), llm.reset_prefix_cache):
        with pytest.raises(JaxInferError, match="closed; make a new one"):
            use()
