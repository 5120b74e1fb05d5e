"""Counters and their names."""

import pytest

from jaxinfer.engine.metrics import EngineMetrics


def test_every_name_is_there_from_the_start() -> None:
    numbers = EngineMetrics().snapshot()
    assert set(numbers.values()) == {0.0}
    for name in ("prompt_tokens", "generation_tokens", "kv_cache_usage_perc"):
        assert name in numbers
    for reason in ("stop", "length", "abort", "error"):
        assert f'request_success{{finished_reason="{reason}"}}' in numbers
    assert "finished" not in numbers and "ttft_seconds" not in numbers


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
