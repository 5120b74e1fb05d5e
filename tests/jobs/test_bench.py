"""`jaxinfer bench` with a fake LLM: workloads and what is reported."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from jaxinfer.errors import ConfigError, RequestError
from jaxinfer.jobs import session
from jaxinfer.jobs.bench import run_bench
from jaxinfer.jobs.bench_workload import WorkloadShape, make_workload
from jaxinfer.jobs.cli import app
from tests.jobs.batch_jobs import good_line, write_lines
from tests.support import fake_engine
from tests.support.fake_engine import FakeLLM

SHAPE = WorkloadShape(num_prompts=10, input_len=20, output_len=6)


def test_random_lengths_scatter_around_the_mean() -> None:
    requests = make_workload("random", SHAPE, vocab_size=50, base={})
    lengths = [len(one.prompt or ()) for one in requests]
    assert len(requests) == 10 and 10 <= min(lengths) < max(lengths) <= 30
    assert all(3 <= (one.params.max_tokens or 0) <= 9 for one in requests)
    assert all(token < 50 for one in requests for token in one.prompt or ())
    assert requests == make_workload("random", SHAPE, vocab_size=50, base={})


def test_a_shared_prefix_is_shared() -> None:
    requests = make_workload("shared-prefix", SHAPE, vocab_size=50, base={})
    assert len({tuple((one.prompt or [])[:20]) for one in requests}) == 1
    assert len({tuple(one.prompt or []) for one in requests}) == 10


def test_mixed48_is_the_file_of_the_benchmarks() -> None:
    requests = make_workload("mixed48", SHAPE, vocab_size=50, base={})
    assert sum(one.params.max_tokens or 0 for one in requests) == 2161
    assert all(one.params.ignore_eos and one.params.temperature == 0 for one in requests)


def test_a_users_file_runs_whatever_model_it_names(tmp_path: Path) -> None:
    body = {"model": "other", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    chat = {"custom_id": "c", "method": "POST", "url": "/v1/chat/completions", "body": body}
    lines = [good_line("a"), good_line("b", model="another"), json.dumps(chat).encode()]
    source = write_lines(tmp_path / "in.jsonl", lines)
    result = run_bench(FakeLLM(), str(source))  # type: ignore[arg-type]
    assert result["throughput"]["completion_tokens"] == 11
    write_lines(source, [good_line("a"), b"[]"])
    with pytest.raises(ConfigError, match="in.jsonl:2: .*not an object"):
        run_bench(FakeLLM(), str(source))  # type: ignore[arg-type]
    write_lines(source, [good_line("a", prompt="x" * 99)])
    with pytest.raises(RequestError, match="a: the prompt has 99 tokens"):
        run_bench(FakeLLM(), str(source))  # type: ignore[arg-type]


@pytest.fixture
def no_poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every token of a random prompt is a good one."""
    monkeypatch.setattr(fake_engine, "POISON", -1)


def test_as_many_requests_run_at_once_as_asked_for(no_poison: None) -> None:
    llm = FakeLLM(num_slots=4)
    result = run_bench(llm, "random", SHAPE, concurrency=2)  # type: ignore[arg-type]
    assert llm.engine.most_open == 8  # the warm-up's
    assert result["concurrency"] == 2 and result["num_requests"] == 10
    assert result["throughput"]["ttft_s"]["count"] == 10
    assert result["latency"]["ttft_s"]["count"] == 8
    assert result["latency"]["ttft_s"]["p99"] == pytest.approx(1, rel=0.02)  # one step
    assert not llm.engine.has_work


@pytest.mark.parametrize("as_json", [True, False])
def test_the_command(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch, no_poison: None, as_json: bool
) -> None:
    def open_llm(model: str, **options: Any) -> FakeLLM:
        assert options == {"max_num_seqs": 4, "show_progress": not as_json}
        return FakeLLM()

    monkeypatch.setattr(session, "open_llm", open_llm)
    arguments = "bench m --num-prompts 5 --input-len 8 --output-len 4 --max-num-seqs 4".split()
    done = runner.invoke(app, [*arguments, *(["--json"] if as_json else [])])
    assert done.exit_code == 0, done.output
    if as_json:
        result = json.loads(done.stdout)
        assert result["model"] == "m" and result["throughput"]["requests_per_s"] > 0
    else:
        assert "TTFT p99 ms" in done.stdout and "one at a time" in done.stdout


@pytest.mark.parametrize("option", ["--num-prompts", "--input-len", "--output-len"])
def test_lengths_of_a_workload_in_a_file_are_refused(runner: CliRunner, option: str) -> None:
    done = runner.invoke(app, ["bench", "m", "--workload", "mixed48", option, "5"])
    name = option.removeprefix("--").replace("-", "_")
    assert done.exit_code == 1 and f"{name}=5 is of the workloads" in done.stderr


def test_a_request_that_ends_in_an_error_is_not_served(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [good_line("a"), good_line("b", prompt=[65, 1])])
    with pytest.raises(RequestError, match="was not served: NaN"):
        run_bench(FakeLLM(), str(source))  # type: ignore[arg-type]


def test_unknown_workloads_name_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="'shared-prefix'"):
        make_workload("mixed49", SHAPE, vocab_size=50, base={})
    with pytest.raises(ConfigError, match="output_len=0"):
        WorkloadShape(output_len=0)
