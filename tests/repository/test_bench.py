"""The benchmarks' own arithmetic: a wrong ratio or workload would go unnoticed."""

import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.jobs.bench import drafted_between
from jaxinfer.quantize.passages import Passages
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


def test_one_system_prompt_is_shared_by_many_questions() -> None:
    rows = load_script("workload").load_workload("shared_system")
    assert len(rows) == len({row.prompt for row in rows}) == 32
    assert {row.max_tokens for row in rows} == {24}
    common = os.path.commonprefix([row.prompt for row in rows])
    assert len(common) > 0.97 * min(len(row.prompt) for row in rows) > 2000


def test_long_prompts_arrive_among_short_ones() -> None:
    rows = load_script("workload").load_workload("long_short")
    longs = [row for row in rows if row.custom_id.startswith("long")]
    shorts = [row for row in rows if row.custom_id.startswith("short")]
    assert [len(longs), len(shorts), len(rows)] == [6, 30, 36]
    assert min(len(row.prompt) for row in longs) > 20 * max(len(row.prompt) for row in shorts)
    assert {row.max_tokens for row in rows} == {32}


def test_the_writer_still_writes_these_requests() -> None:
    writer, load = load_script("workload_writer"), load_script("workload").load_workload
    for write in (writer.shared_system, writer.long_short, writer.editing):
        written, kept = list(write()), load(write.__name__)
        # Not the texts: those of another Python differ.
        assert [one["custom_id"] for one in written] == [row.custom_id for row in kept]
        assert [one["max_tokens"] for one in written] == [row.max_tokens for row in kept]


def test_editing_is_copying_after_an_example() -> None:
    rows = load_script("workload").load_workload("editing")
    assert len(rows) == 8 and {row.max_tokens for row in rows} == {128}
    assert all(row.prompt.count("Copy:") == 2 and row.prompt.endswith("Copy:") for row in rows)


def test_speculation_s_figures_are_of_one_run() -> None:
    """Differences of running totals, and the setting of each variant."""
    bench = load_script("speculation")
    names = (
        *("num_drafts", "num_draft_tokens", "num_accepted_tokens"),
        *("draft_seconds", "verify_seconds", "instead_seconds", "compared_seconds"),
        *(f'num_accepted_tokens_per_pos{{position="{place}"}}' for place in range(3)),
    )
    before, after = (
        {f"spec_decode_{name}": value for name, value in zip(names, values, strict=True)}
        for values in (
            (1.0, 5.0, 5.0, 1.0, 1.0, 9.0, 1.0, 1.0, 1.0, 0.0),
            (3.0, 15.0, 7.0, 1.5, 3.0, 11.5, 3.0, 2.5, 1.5, 0.0),
        )
    )
    figures = bench.drafting(before, after)
    assert figures["acceptance_rate"] == 0.2 and figures["mean_acceptance_length"] == 2.0
    assert (figures["draft_seconds"], figures["verify_seconds"]) == (0.5, 2.0)
    assert figures["estimated_gain"] == 1.25
    assert drafted_between(before, after)["accepted_per_position"] == [0.75, 0.25]
    options = bench.parse(["--at-once", "2", "--drafts", "3", "--layers", "7"])
    made = {one.name: bench.speculative(one, options) for one in bench.VARIANTS}
    assert made["baseline"] is None
    assert made["ngram"] == {"method": "ngram", "num_speculative_tokens": 3}
    assert made["self-layers"]["num_layers"] == 7
    assert made["self-int8"]["tokens_by_running"] == ((2, 3),)


def test_a_variant_brings_the_one_that_it_is_compared_to() -> None:
    bench = load_script("variants")
    a, b = bench.Variant(name="baseline"), bench.Variant(name="b")
    c = bench.Variant(name="c", compared_to="b")
    assert bench.choose([a, b, c], None) == [a, b, c]
    assert bench.choose([a, b, c], ["c"]) == [a, b, c]
    assert bench.choose([a, b, c], ["b"]) == [a, b]


def test_variants_take_turns_and_are_compared_round_by_round() -> None:
    bench = load_script("variants")
    a, b = bench.Variant(name="baseline"), bench.Variant(name="b")
    speeds, order = {"baseline": [100.0, 50.0, 10.0], "b": [150.0, 50.0, 20.0]}, []

    def measure(variant):
        order.append(variant.name)
        return {"speed": speeds[variant.name][(len(order) - 1) // 2], "note": "text"}

    results = bench.run_rounds([a, b], 3, measure)
    assert order == ["baseline", "b"] * 3
    assert bench.medians(results["b"]) == {"speed": 50.0}
    compared = bench.ratios(b, results, "speed")
    assert compared == {"compared_to": "baseline", "ratio": 1.5, "ratio_by_round": [1.5, 1.0, 2.0]}


def test_percentiles_are_values_that_occur() -> None:
    percentile = load_script("variants").percentile
    values = [float(n) for n in range(100, 0, -1)]
    assert [percentile(values, p) for p in (50, 90, 99, 100)] == [50.0, 90.0, 99.0, 100.0]
    assert percentile([3.0], 50) == 3.0 and percentile([], 50) != percentile([], 50)


def test_a_table_has_a_line_a_variant() -> None:
    table = load_script("variants").markdown_table(["a", "b"], [["x", 1], ["y", 2]])
    assert table == "| a | b |\n| --- | --- |\n| x | 1 |\n| y | 2 |"


def feature_result(speed: float, digest: str) -> dict:
    counts = {"preemptions": 0, "prefix_hits": 0, "digest": digest}
    times = {"ttft_p50_s": 1.0, "ttft_p99_s": 2.0, "tpot_p50_ms": 30.0}
    return {"tokens_per_s": speed, **times, **counts}


def test_features_say_when_tokens_differ() -> None:
    features = load_script("features")
    base, off = features.VARIANTS[:2]
    results = {
        base.name: [feature_result(100.0, "x"), feature_result(80.0, "x")],
        off.name: [feature_result(50.0, "x"), feature_result(60.0, "y")],
    }
    summary = features.summarize([base, off], results)
    assert summary["variants"][off.name]["ratio_by_round"] == [0.5, 0.75]
    table = features.features_table(summary)
    assert "| no-prefix-cache | 55.0 | 1.0 | 2.0 | 30.0 |" in table and "DIFFERENT" in table
    results[off.name][1] = feature_result(60.0, "x")
    assert "DIFFERENT" not in features.features_table(features.summarize([base, off], results))


def test_features_take_a_third_of_the_pages_held_at_the_peak() -> None:
    features = load_script("features")
    rows = features.chosen_rows(features.parse(["--requests", "2", "--output-tokens", "100"]))
    assert [row.max_tokens for row in rows] == [100, 100]
    llm = SimpleNamespace(
        geometry=SimpleNamespace(num_pages=(91,), page_tokens=64),
        get_metrics=lambda: {"kv_cache_usage_peak_perc": 0.5},
        get_tokenizer=lambda: SimpleNamespace(encode=lambda text: [0] * 10),
    )
    assert features.third_of_peak(llm, rows) == 15
    llm.geometry.num_pages = (7,)
    assert features.third_of_peak(llm, rows) == 2  # the largest request still fits


class SlowEngine:
    """Gives each request, in turn, a token a step; a step takes long on the clock of the test."""

    def __init__(self, clock: list[float]) -> None:
        self.clock = clock
        self.left: dict[str, int] = {}

    @property
    def has_work(self) -> bool:
        return bool(self.left)

    def add(self, prompt, params, options):
        self.left[prompt] = params.max_tokens
        return SimpleNamespace(request_id=prompt, error=None)

    def step(self) -> list[SimpleNamespace]:
        self.clock[0] += 4.0
        name = next(iter(self.left))
        self.left[name] -= 1
        if not self.left[name]:
            del self.left[name]
        return [SimpleNamespace(request_id=name, token_ids=[1], error=None)]


def test_latency_counts_from_the_planned_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    latency = load_script("latency")
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(latency.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(latency.time, "sleep", sleep)
    row = latency.WorkloadRow
    rows = [row(custom_id=f"short{n}", prompt=str(n), max_tokens=2) for n in range(3)]
    arrivals = latency.timetable(rows, 20.0)
    assert [one.arrival_s for one in arrivals] == [0.0, 10.0, 20.0]
    llm = SimpleNamespace(engine=SlowEngine(clock))
    served = latency.serve(llm, arrivals, has_class=True)
    assert [one.token_s for one in served] == [[4.0, 8.0], [14.0, 18.0], [24.0, 28.0]]
    assert [one.ttft_s for one in served] == [4.0, 4.0, 4.0]
    # While a step runs nobody is added; that wait counts too.
    crowded = latency.serve(
        SimpleNamespace(engine=SlowEngine(clock)), latency.timetable(rows, 2.0), has_class=False
    )
    assert [one.ttft_s for one in crowded] == [4.0, 11.0, 18.0]


def test_latencies_tell_short_from_long_and_find_the_longest_gap() -> None:
    latency = load_script("latency")

    def served(name: str, arrival_s: float, *token_s: float):
        row = latency.WorkloadRow(custom_id=name, prompt="", max_tokens=len(token_s))
        return latency.Served(row=row, arrival_s=arrival_s, token_s=list(token_s))

    figures = latency.latencies(
        [served("short0", 1.0, 1.5, 1.6, 1.7), served("long1", 2.0, 6.0, 6.1, 8.1)]
    )
    assert figures["short_ttft_p99_s"] == 0.5 and figures["long_ttft_p50_s"] == 4.0
    assert figures["tpot_p50_ms"] == 100.0 and figures["tpot_p99_ms"] == 1050.0
    assert figures["gap_max_ms"] == 2000.0 and figures["seconds"] == 8.1


def test_the_device_waits_where_no_program_runs() -> None:
    overlap = load_script("overlap")
    # Two at either end are left out; of the rest the third begins before the second has ended.
    spans = [(0, 1), (1, 2), (100, 200), (210, 300), (290, 400), (450, 500), (900, 901), (902, 903)]
    runs = [overlap.Execution("step", 1e6 * start, 1e6 * end) for start, end in spans]
    assert overlap.waits(runs) == {
        "steps": 4,
        "step_ms": 100.0,
        "wait_share": 0.15,
        "wait_p50_us": 10000.0,
        "wait_p99_us": 50000.0,
    }


def test_executions_are_found_in_a_profile(tmp_path: Path) -> None:
    overlap = load_script("overlap")
    program = jax.jit(lambda x: jnp.tanh(x @ x) + 1)
    program(jnp.ones((64, 64))).block_until_ready()  # compiled before the profile
    llm = SimpleNamespace()
    with overlap.profiling(llm, str(tmp_path), python_calls=False):
        for _ in range(3):
            program(jnp.ones((64, 64))).block_until_ready()
    runs = [run for run in overlap.read_executions(tmp_path) if "lambda" in run.program]
    assert len(runs) == 3
    assert all(run.start_ns < run.end_ns for run in runs)
    assert all(a.end_ns <= b.start_ns for a, b in zip(runs, runs[1:], strict=False))


def test_the_loss_of_a_batch_job_is_of_the_median_pair() -> None:
    pairs = [(10.0, 10.2), (10.0, 13.0), (20.0, 20.6)]
    summary = load_script("batch_job").summarize(pairs)
    assert summary["loss_percent"] == 3.0 and summary["ratios"] == [1.02, 1.3, 1.03]


def test_what_a_draw_costs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = load_script("draw")
    monkeypatch.setattr(bench, "KINDS", {"top_k": {"temperature": 1.0, "top_k": 4}})
    bench.main(["--rows", "2", "--vocab-size", "64", "--repeats", "2"])
    results = json.loads(capsys.readouterr().out.splitlines()[-1])["results"]
    assert list(results) == ["noise", "noise of jax.random", "top_k, flat", "top_k, peaked"]
    assert all(one["ms"] > 0 and one["first_s"] > 0 for one in results.values())


@pytest.mark.slow
def test_the_gpu_script_runs_end_to_end_on_a_cpu(tmp_path: Path) -> None:
    """Every part in its tiny mode: checked against float64, written as JSON and as a table."""
    script = load_script("gpu/run")
    assert script.main(["--tiny", "--seed", "0", "--output", str(tmp_path)]) == 0
    (found,) = tmp_path.glob("tiny-*.json")
    rows = json.loads(found.read_text(encoding="utf-8"))["rows"]
    sections = {row["section"] for row in rows}
    assert sections == {
        "machine",
        "rms_norm",
        "add_rms_norm",
        "rotate_write",
        "plain product",
        "int8 by int8 product",
        "fp8 by fp8 product",
        "decode attention",
        "prefill attention",
        "quant matmul",
        "decode step",
    }
    checked = [row for row in rows if row["error"] is not None]
    assert {row["implementation"] for row in checked} == {"xla", "reference", "simulated"}
    assert "every row is right" in found.with_suffix(".md").read_text(encoding="utf-8")


def test_what_a_cache_s_logits_are_judged_by() -> None:
    """KL by hand, and results by context in turn."""
    script = load_script("kv_cache")
    passages = Passages(contexts=(2, 4), judged=3, token_ids=((0, 1, 1, 0, 1),))
    plain = np.log(np.array([[0.5, 0.5], [0.9, 0.1]], np.float32))
    other = np.log(np.array([[0.25, 0.75], [0.9, 0.1]], np.float32)) + np.float32(3)
    by_hand = 0.5 * np.log(0.5 / 0.25) + 0.5 * np.log(0.5 / 0.75)
    found = script.compare(*(np.repeat(rows, [2, 3], axis=0) for rows in (plain, other)), passages)
    assert [one["context"] for one in found] == [2, 4]
    assert [one["kl_mean"] for one in found] == pytest.approx([by_hand, 0], abs=1e-6)
    assert [one["top1_agreement"] for one in found] == [0, 1]
    assert found[0]["nats"] == pytest.approx(-np.log(0.75), rel=1e-6)
    assert len(script.text()) > 400_000


def test_a_row_of_the_quantization_table_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And comes out in the order of the rows, with what it loses against the float model."""
    script = load_script("quantization")
    figures = {"bits": 4.125, "bytes": 95.24e6, "perplexity": 10.3, "float_perplexity": 10.0}
    figures |= {"kl_mean": 0.0412, "kl_p99": 0.5, "top1_agreement": 0.881}
    judged = []
    monkeypatch.setattr(script.Bench, "make", lambda self, row: tmp_path / "made")
    monkeypatch.setattr(
        script.Bench, "judge", lambda self, row, source: judged.append(row.name) or dict(figures)
    )
    arguments = ["--folder", str(tmp_path), "--model", "m", "--only"]
    script.main([*arguments, "awq, groups of 32"])
    script.main([*arguments, "rtn, groups of 32", "awq, groups of 32"])
    assert judged == ["int4 awq, groups of 32", "int4 rtn, groups of 32"]
    rows = script.table(tmp_path, ["m"]).splitlines()[2:]
    assert [row.split(" | ")[1] for row in rows] == judged[::-1]
    assert "| 4.12 | 95.2 | 10.300 (+3.00%) | 4.12e-02 | 5.00e-01 | 88.10% |" in rows[0]
    assert len({script.Bench(tmp_path, "m").path(row) for row in script.ROWS}) == len(script.ROWS)
