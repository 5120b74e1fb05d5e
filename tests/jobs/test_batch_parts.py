"""Smaller parts of batch jobs: the shelf, distributions, progress, metrics, fingerprints."""

import io
import json
import shutil
import sys
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from jaxinfer.config.engine_config import engine_config
from jaxinfer.config.request_options import RequestOptions
from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.engine.metrics import EngineMetrics
from jaxinfer.errors import ConfigError
from jaxinfer.jobs import batch_loop, batch_progress
from jaxinfer.jobs.batch_fingerprint import (
    draft_of,
    engine_fingerprint,
    job_fingerprint,
    model_fingerprint,
)
from jaxinfer.jobs.batch_loop import Ready, Shelf, Stop, run_requests
from jaxinfer.jobs.batch_metrics import MetricsServer
from jaxinfer.jobs.batch_progress import ProgressReporter, measure_progress
from jaxinfer.jobs.batch_settings import as_names, parse_shard, shard_path
from jaxinfer.jobs.batch_statistics import Distribution
from tests.support.fake_engine import FakeLLM

DATA = Path(__file__).parents[1] / "data" / "float"


def ready(key: str, *, num_bytes: int = 1, n: int = 1) -> Ready:
    return Ready(
        prompt=lambda: key,
        params=SamplingParams(max_tokens=2, n=n),
        options=RequestOptions(),
        key=key,
        num_bytes=num_bytes,
        tag=key,
    )


def order(keys: str, count: int, *, is_sorted: bool = True) -> str:
    shelf = Shelf((ready(key) for key in keys), count, is_sorted=is_sorted)
    taken = []
    while (one := shelf.take()) is not None:
        taken.append(one.key)
    return "".join(taken)


def test_neighbours_run_together_and_nobody_waits_for_ever() -> None:
    assert order("bdac", 2) == "bdac"
    assert order("abababab", 8) == "aaaabbbb"
    assert order("zbaba", 3) == "zbbaa"
    assert order("cab", 3, is_sorted=False) == "cab"
    assert sorted(order("qwertyuiop", 4)) == sorted("qwertyuiop")


def test_only_what_begins_alike_is_reordered() -> None:
    alike = "a" * 200
    keys = ["q", alike + "2", "b", alike + "1", "a", alike + "3"]
    shelf = Shelf((ready(key) for key in keys), 6, is_sorted=True)
    taken = [one.key for one in iter(shelf.take, None)]
    assert taken == ["q", alike + "1", alike + "2", alike + "3", "b", "a"]


def test_a_key_behind_the_rounds_place_waits_for_the_next() -> None:
    # Always new small keys: "m" must still come after one round.
    assert order("bm" + "abc" * 10, 2).index("m") < 6


def test_the_shelf_is_bounded_in_bytes() -> None:
    taken = []

    def source():
        for number in range(10):
            taken.append(number)
            yield ready(f"k{number}", num_bytes=batch_loop.SHELF_BYTES // 3)

    shelf = Shelf(source(), 10, is_sorted=True)
    shelf.take()
    assert len(taken) == 4


def test_completions_of_one_prompt_that_end_together() -> None:
    llm = FakeLLM(num_slots=3)
    came = list(run_requests(llm, iter([ready("a", n=3), ready("b")]), Stop()))  # type: ignore[arg-type]
    outputs = [one for one in came if one is not None]
    assert [len(output.outputs) for _, output in outputs] == [3, 1]
    assert not llm.engine.has_work


def test_percentiles_are_right_within_a_percent() -> None:
    values = np.random.default_rng(0).lognormal(size=20_000)
    halves = [Distribution(), Distribution()]
    for place, value in enumerate(values):
        halves[place % 2].observe(float(value))
    whole = Distribution()
    for half in halves:
        whole.merge(json.loads(json.dumps(half.state())))
    found = whole.summary()
    assert found is not None and found["count"] == 20_000
    assert found["mean"] == pytest.approx(values.mean())
    for one in (50, 90, 95, 99):
        assert found[f"p{one}"] == pytest.approx(np.percentile(values, one), rel=0.015)
    assert Distribution().summary() is None
    whole = Distribution()
    whole.observe(0)
    assert whole.summary() == {"count": 1, "mean": 0, "p50": 0, "p90": 0, "p95": 0, "p99": 0}


def test_progress_counts_this_run_for_rates_and_all_for_lines() -> None:
    progress = measure_progress(
        done=50,
        failed=10,
        total=100,
        num_before=40,
        elapsed_s=10.0,
        prompt_tokens=1000,
        completion_tokens=500,
        metrics={
            "kv_cache_usage_perc": 0.25,
            "prefix_cache_hits": 30,
            "prefix_cache_queries": 120,
            "spec_decode_num_accepted_tokens": 3,
            "spec_decode_num_draft_tokens": 4,
        },
    )
    assert (progress.eta_s, progress.completion_tokens_per_s) == (20.0, 50.0)
    assert (progress.prefix_hit_rate, progress.acceptance_rate) == (0.25, 0.75)
    first = measure_progress(
        done=0,
        failed=0,
        total=9,
        num_before=0,
        elapsed_s=0,
        prompt_tokens=0,
        completion_tokens=0,
        metrics={},
    )
    assert first.eta_s is None and first.prefix_hit_rate is None
    assert first.acceptance_rate is None


@pytest.mark.parametrize("form", ["bar", "json", "none"])
def test_progress_is_shown_once_an_interval(
    form: batch_progress.ProgressForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, asked = io.StringIO(), []

    def measure() -> batch_progress.Progress:
        asked.append(1)
        return measure_progress(
            done=3,
            failed=1,
            total=5,
            num_before=0,
            elapsed_s=2.0,
            prompt_tokens=6,
            completion_tokens=8,
            metrics={"prefix_cache_hits": 1, "prefix_cache_queries": 2},
        )

    monkeypatch.setattr(batch_progress, "INTERVAL_S", 0.05)
    reporter = ProgressReporter(form, measure, out)
    for _ in range(20):
        reporter.tick()
    assert len(asked) <= 1
    time.sleep(0.06)
    reporter.tick()
    reporter.close()
    shown = out.getvalue()
    if form == "json":
        rows = [json.loads(line) for line in shown.splitlines()]
        assert rows[-1]["event"] == "progress" and rows[-1]["done"] == 3
    elif form == "bar":
        assert "4/5" in shown and "1 failed" in shown and "prefix 50%" in shown
    else:
        assert not shown and not asked


def test_prometheus_sees_counters_gauges_and_histograms() -> None:
    pytest.importorskip("prometheus_client", reason="the metrics extra is not installed")
    metrics = EngineMetrics(prompt_tokens=7, num_requests_running=2)
    metrics.see_first_token(0.05)
    server = MetricsServer(0)
    try:
        with pytest.raises(ConfigError, match="metrics_port="):
            MetricsServer(server.port)
        server.publish({**metrics.snapshot(), "spec_decode_estimated_gain": 1.5})
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
            text = answer.read().decode()
    finally:
        server.close()
    for line in (
        "jaxinfer:prompt_tokens_total 7.0",
        "# TYPE jaxinfer:num_requests_running gauge",
        "jaxinfer:num_requests_running 2.0",
        "# TYPE jaxinfer:spec_decode_estimated_gain gauge",
        'jaxinfer:request_success_total{finished_reason="stop"} 0.0',
        'jaxinfer:time_to_first_token_seconds_bucket{le="0.06"} 1.0',
        'jaxinfer:time_to_first_token_seconds_bucket{le="+Inf"} 1.0',
        "jaxinfer:time_to_first_token_seconds_sum 0.05",
    ):
        assert line in text.splitlines(), line


def test_metrics_without_prometheus_client_name_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match=r"jaxinfer\[metrics\]"):
        MetricsServer(0)


def test_a_models_fingerprint_is_of_its_content(tmp_path: Path) -> None:
    first = model_fingerprint(DATA / "llama")
    copy = shutil.copytree(DATA / "llama", tmp_path / "elsewhere")
    assert model_fingerprint(copy) == first != model_fingerprint(DATA / "llama_tied")
    weights = copy / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-5] ^= 1
    weights.write_bytes(bytes(data))
    assert model_fingerprint(copy) != first


def test_a_draft_models_content_counts(tmp_path: Path) -> None:
    model, draft = DATA / "llama", DATA / "llama_tied"
    asked = {"speculative_config": {"model": str(draft)}}
    assert draft_of(asked) == str(draft) and draft_of({}) is None
    assert draft_of({"speculative_config": {"method": "ngram"}}) is None
    found = {model_fingerprint(model, draft=one) for one in (None, draft, model)}
    assert len(found) == 3


def test_an_engines_fingerprint_is_of_its_arithmetic() -> None:
    fake = FakeLLM()

    def of(device: str = "cpu", **changes: object) -> str:
        decided = {one: changes.pop(one) for one in list(changes) if hasattr(fake.geometry, one)}
        geometry = SimpleNamespace(**{**vars(fake.geometry), **decided})
        return engine_fingerprint("m", geometry, engine_config(**changes), device)  # type: ignore[arg-type]

    assert of() == of(num_slots=9) == of(max_num_seqs=9)
    others = [
        {"norm_kernel": "xla"},
        {"expert_kernel": "rounds"},
        {"kv_scales": (((1.0,), (0.5,)),)},
        {"quantization": "int8"},
        {"weights": "dequantized"},
        {"activations": "checkpoint"},
        {"kernels": "reference"},
        {"kernels": {"quant_matmul": "reference"}},
        {"device": "NVIDIA H200, jax 0.10.2"},
    ]
    assert len({of(), *(of(**one) for one in others)}) == len(others) + 1  # type: ignore[arg-type]


def test_large_files_are_sampled(tmp_path: Path) -> None:
    path = tmp_path / "big.gguf"
    with path.open("wb") as file:
        file.truncate(2**34)  # sparse: 16 GiB
    start = time.monotonic()
    first = model_fingerprint(path)
    assert time.monotonic() - start < 5
    with path.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"x")
    assert model_fingerprint(path) != first


def test_a_jobs_fingerprint_is_of_what_changes_its_outputs() -> None:
    def of(settings: dict[str, object], **params: object) -> str:
        return job_fingerprint("m", settings, params, seed=0)

    assert of({}) == of({"max_num_seqs": 9, "trace": "x", "enable_prefix_caching": False})
    assert len({of({}), of({"dtype": "float32"}), of({}, temperature=0)}) == 3
    # A command line and a call spell the same differently.
    assert of({}, temperature=0, max_tokens=5) == of({}, max_tokens=5, temperature=0.0)
    assert of({}, stop="x", logit_bias={5: 1}) == of({}, stop=["x"], logit_bias={"5": 1.0})
    assert of({}, stop="x") != of({}, stop="y")
    asked = {"rms_norm": "xla", "paged_attention": "reference"}
    assert of({"kernels": asked}) == of({"kernels": "paged_attention=reference,rms_norm=xla"})
    assert of({"kernels": asked}) != of({"kernels": "rms_norm=xla"})


def test_one_name_is_not_its_letters() -> None:
    assert as_names("served") == ("served",) and as_names(["a", "b"]) == ("a", "b")


def test_shards_are_counted_from_zero() -> None:
    assert parse_shard("3/4") == (3, 4)
    assert shard_path(Path("a/out.jsonl"), (3, 4)).name == "out-00003-of-00004.jsonl"
    assert shard_path(Path("a/out.jsonl"), (0, 1)) == Path("a/out.jsonl")
    for text in ("4", "a/4", "-1/4", "1/2/3", ""):
        with pytest.raises(ConfigError, match="shard="):
            parse_shard(text)
