"""The benchmarks' own arithmetic: a wrong ratio or workload would go unnoticed."""

import importlib.util
import json
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.repository.tree import ROOT


def load_script(name: str) -> ModuleType:
    path = ROOT / "bench" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"bench_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", autouse=True)
def neighbours() -> Iterator[None]:
    """Scripts of bench/ import each other by name; what they add to the path goes away again."""
    before = list(sys.path)
    sys.path.insert(0, str(ROOT / "bench"))
    yield
    sys.path[:] = before


def test_the_workload_is_the_one_that_peers_were_measured_on() -> None:
    rows = load_script("workload").load_workload("mixed48")
    assert len(rows) == 48 and sum(row.max_tokens for row in rows) == 2161
    assert len({row.custom_id for row in rows}) == 48


def test_an_unknown_workload_names_the_known_ones() -> None:
    with pytest.raises(FileNotFoundError, match="mixed48"):
        load_script("workload").load_workload("mixed49")


def test_tokens_per_second() -> None:
    record = load_script("record")
    result = record.Throughput(
        engine="e", workload="w", tokens=100, seconds=4.0, startup_s=1.25, extra={"jax": "1"}
    )
    line = json.loads(record.throughput_line(result))
    assert line["tokens_per_s"] == 25.0 and line["jax"] == "1"
    assert record.read_throughput(f"noise\n{json.dumps(line)}\nmore noise\n") == line
    with pytest.raises(ValueError, match="no JSON line"):
        record.read_throughput("noise")


def test_the_ratio_of_starts_is_warm_over_cold() -> None:
    cold, warm = {"compile_s": 8.0}, {"compile_s": 2.0}
    summary = load_script("start").summarize("m", cold, warm)
    assert summary == {"model": "m", "cold": cold, "warm": warm, "compile_ratio": 0.25}


def test_the_ratio_is_ours_over_theirs() -> None:
    compare = load_script("compare")
    results = {
        "jaxinfer": [{"tokens_per_s": 300.0}, {"tokens_per_s": 200.0}],
        "transformers": [{"tokens_per_s": 100.0}, {"tokens_per_s": 100.0}],
    }
    summary = compare.summarize(results)
    assert summary["ratio"] == 2.5 and summary["ratio_by_round"] == [3.0, 2.0]
    assert "| ratio | **2.5** |" in compare.comparison_table(summary)


def test_the_loss_of_a_batch_job_is_of_the_median_pair() -> None:
    pairs = [(10.0, 10.2), (10.0, 13.0), (20.0, 20.6)]
    summary = load_script("batch_job").summarize(pairs)
    assert summary["loss_percent"] == 3.0 and summary["ratios"] == [1.02, 1.3, 1.03]
