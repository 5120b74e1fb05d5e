"""Counters, gauges and histograms, under their names."""

import time

import pytest

from jaxinfer.engine.metrics import EngineMetrics
from jaxinfer.scheduler.request import FinishReason, Request
from tests.support.records import request

HISTOGRAMS = (
    *("time_to_first_token_seconds", "time_per_output_token_seconds"),
    *("inter_token_latency_seconds", "e2e_request_latency_seconds"),
    *("request_queue_time_seconds", "request_prefill_time_seconds"),
    "request_decode_time_seconds",
)


def served(num_tokens: int = 5, reason: FinishReason | None = "length") -> Request:
    """Arrived at 10 s, admitted after 1 s, first token 2 s later, ended 8 s later."""
    one = request()
    one.output_ids = [97] * num_tokens
    one.finish_reason = reason
    one.arrival_s, one.admitted_s, one.first_token_s, one.finished_s = 10.0, 11.0, 13.0, 21.0
    return one


def test_every_name_is_there_from_the_start() -> None:
    numbers = EngineMetrics().snapshot()
    assert set(numbers.values()) == {0.0}
    for name in (
        *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"),
        *("prefix_cache_queries", "prefix_cache_hits", "num_preemptions"),
        *("prompt_tokens", "generation_tokens"),
    ):
        assert name in numbers
    for name in HISTOGRAMS:
        assert f'{name}_bucket{{le="+Inf"}}' in numbers and f'{name}_bucket{{le="1.0"}}' in numbers
        assert f"{name}_sum" in numbers and f"{name}_count" in numbers
    for reason in ("stop", "length", "abort", "error"):
        assert f'request_success{{finished_reason="{reason}"}}' in numbers
    assert "finished" not in numbers and not set(HISTOGRAMS) & set(numbers)


def test_usage_keeps_its_peak() -> None:
    metrics = EngineMetrics()
    for share in (0.25, 0.75, 0.5):
        metrics.see_usage(share)
    numbers = metrics.snapshot()
    assert numbers["kv_cache_usage_perc"] == 0.5 and numbers["kv_cache_usage_peak_perc"] == 0.75


def test_first_tokens_are_counted_and_summed() -> None:
    metrics = EngineMetrics()
    metrics.see_first_token(0.5)
    metrics.see_first_token(1.0)
    numbers = metrics.snapshot()
    assert numbers["time_to_first_token_seconds_count"] == 2
    assert numbers["time_to_first_token_seconds_sum"] == pytest.approx(1.5)


def test_a_snapshot_is_a_copy_and_engines_do_not_share() -> None:
    metrics, other = EngineMetrics(), EngineMetrics()
    before = metrics.snapshot()
    metrics.finished["stop"] += 1
    assert before['request_success{finished_reason="stop"}'] == 0
    assert metrics.snapshot()['request_success{finished_reason="stop"}'] == 1
    assert other.finished["stop"] == 0


def test_a_bucket_counts_what_is_at_most_its_bound() -> None:
    metrics = EngineMetrics()
    for seconds in (0.0, 0.0005, 0.001, 0.0011, 0.1, 79.0, 80.0, 81.0):
        metrics.see_next_token(seconds)
    numbers = metrics.snapshot()
    name = "inter_token_latency_seconds"
    reached = [numbers[f'{name}_bucket{{le="{le}"}}'] for le in ("0.001", "0.1", "40.0", "80.0")]
    assert reached == [3, 5, 5, 7]
    assert numbers[f'{name}_bucket{{le="+Inf"}}'] == numbers[f"{name}_count"] == 8
    assert numbers[f"{name}_sum"] == pytest.approx(240.1026)


@pytest.mark.parametrize("name", HISTOGRAMS)
def test_buckets_only_rise(name: str) -> None:
    metrics = EngineMetrics()
    for seconds in (0.0001, 0.3, 5.0, 1e6):
        getattr(metrics, name).observe(seconds)
    numbers = metrics.snapshot()
    reached = [value for key, value in numbers.items() if key.startswith(f"{name}_bucket")]
    assert reached == sorted(reached) and (reached[0], reached[-1]) == (1, 4)


def test_the_times_of_a_served_request() -> None:
    metrics = EngineMetrics()
    metrics.see_finished(served(num_tokens=5))
    numbers = metrics.snapshot()
    sums = {name: numbers[f"{name}_sum"] for name in HISTOGRAMS[3:]}
    assert list(sums.values()) == [11.0, 1.0, 2.0, 8.0]
    assert numbers["time_per_output_token_seconds_sum"] == 2.0  # 8 s over 4 gaps
    assert numbers['request_success{finished_reason="length"}'] == 1


def test_a_single_token_has_no_time_per_output_token() -> None:
    metrics = EngineMetrics()
    metrics.see_finished(served(num_tokens=1, reason="stop"))
    numbers = metrics.snapshot()
    assert numbers["time_per_output_token_seconds_count"] == 0
    assert numbers["e2e_request_latency_seconds_count"] == 1


@pytest.mark.parametrize("reason", ["abort", "error", None])
def test_a_request_that_did_not_end_by_itself_is_only_counted(reason: FinishReason | None) -> None:
    metrics = EngineMetrics()
    metrics.see_finished(served(reason=reason))
    numbers = metrics.snapshot()
    assert numbers[f'request_success{{finished_reason="{reason or "abort"}"}}'] == 1
    assert not any(numbers[f"{name}_count"] for name in HISTOGRAMS)


def test_a_request_without_tokens_has_no_times() -> None:
    """It scored its prompt."""
    metrics, one = EngineMetrics(), served(num_tokens=0)
    one.first_token_s = None
    metrics.see_finished(one)
    assert metrics.snapshot()["e2e_request_latency_seconds_count"] == 0
    assert metrics.finished == {"length": 1}


def test_gauges_and_the_prefix_cache() -> None:
    metrics = EngineMetrics()
    metrics.see_queues(num_running=3, num_waiting=9)
    metrics.see_queues(num_running=2, num_waiting=0)
    metrics.see_prefix_lookup(num_tokens=100, num_hits=64)
    metrics.see_prefix_lookup(num_tokens=30, num_hits=0)
    numbers = metrics.snapshot()
    assert (numbers["num_requests_running"], numbers["num_requests_waiting"]) == (2, 0)
    assert (numbers["prefix_cache_queries"], numbers["prefix_cache_hits"]) == (130, 64)


def test_a_token_is_cheap_to_count() -> None:
    """Measured: 0.3 µs; the bound is for a busy machine."""
    metrics, count = EngineMetrics(), 10_000
    start = time.process_time()
    for place in range(count):
        metrics.see_next_token(place * 1e-5)
    assert (time.process_time() - start) / count < 20e-6
