"""The host loop's benchmark: what it counts, and its arithmetic."""

import json
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.repository.test_bench import load_script
from tests.repository.tree import ROOT


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    """The script; what it adds to the path goes away again."""
    before = list(sys.path)
    sys.path.insert(0, str(ROOT / "bench"))
    yield load_script("host_loop")
    sys.path[:] = before


def test_prompts_share_nothing_and_end_in_different_places(bench: ModuleType) -> None:
    made = bench.prompts(64, 100)
    assert len({tokens[0] for tokens in made}) == 64 and made == bench.prompts(64, 100)
    assert {len(tokens) for tokens in made} == set(range(100, 164))
    assert bench.prompts(8, 100) == made[:8]


def test_all_requests_decode_in_every_step(bench: ModuleType) -> None:
    options = bench.parse(["--context", "70", "--steps", "8", "--rounds", "2"])
    scheduler = bench.running_scheduler(5, options)
    before = [len(one.output_ids) for one in scheduler.running]
    for _ in range(3):
        assert all(part >= 0 for part in bench.decode_once(scheduler))
    assert [len(one.output_ids) for one in scheduler.running] == [one + 3 for one in before]
    assert len(before) == 5
    host = bench.host_loops(options, [2, 4])
    assert list(host) == [2, 4] and host[4]["requests_ratio"] == 2.0
    names = ["schedule_us", "stage_us", "update_us", "step_us", "step_p99_us"]
    assert list(host[2]) == names and all(host[2][name] > 0 for name in names)


def test_growth_is_the_median_over_the_turns(bench: ModuleType) -> None:
    rounds = {
        8: [{"step_us": 10.0}, {"step_us": 10.0}, {"step_us": 40.0}],
        64: [{"step_us": 30.0}, {"step_us": 80.0}, {"step_us": 200.0}],
    }
    assert bench.growth(rounds, 64) == {"growth": 5.0, "requests_ratio": 8.0}
    assert bench.growth(rounds, 8) == {}


def test_the_host_s_part_of_the_model_s_step(bench: ModuleType) -> None:
    parts = {"schedule_us": 600.0, "stage_us": 100.0, "update_us": 300.0}
    host = {
        64: {**parts, "step_us": 1000.0, "step_p99_us": 1500.0, "growth": 3.0},
        8: {**parts, "step_us": 333.333, "step_p99_us": 500.0},
    }
    summary = bench.summarize(host, {"model_requests": 64, "model_step_ms": 80.0})
    assert summary["host_share_percent"] == 1.25 and list(summary["host"]) == ["8", "64"]
    assert "host_share_percent" not in bench.summarize(host, None)
    lines = bench.host_table(summary).splitlines()
    assert lines[2] == "| 8 | 600.0 | 100.0 | 300.0 | 333.33 | 500.0 |  |"
    assert load_script("record").read_throughput(json.dumps(summary)) == summary
