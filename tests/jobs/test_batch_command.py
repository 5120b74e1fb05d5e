"""`jaxinfer batch`: options, exit codes, and what is printed."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from jaxinfer.jobs import batch, batch_command, session
from jaxinfer.jobs.batch_settings import BatchSummary
from jaxinfer.jobs.cli import app
from tests.jobs.batch_jobs import good_line, read_output, write_lines
from tests.support.fake_engine import FakeLLM


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any], FakeLLM]]:
    """The models that commands have opened, with their options."""
    opened: list[tuple[str, dict[str, Any], FakeLLM]] = []

    def open_llm(model: str, **options: Any) -> FakeLLM:
        opened.append((model, options, FakeLLM()))
        return opened[-1][2]

    monkeypatch.setattr(session, "open_llm", open_llm)
    monkeypatch.setattr(batch, "model_fingerprint", lambda *_, **__: "digest")
    return opened


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "in.jsonl", [good_line(f"r{number}") for number in range(9)])


def invoke(runner: CliRunner, *arguments: object) -> Result:
    return runner.invoke(app, ["batch", *map(str, arguments)])


def test_good_lines_end_with_0(
    runner: CliRunner, models: list, source: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"
    options = ["--max-num-seqs", 3, "--top-k", 5, "--include", "seed", "--include", "token_ids"]
    done = invoke(runner, source, "-o", output, "--model", "m", *options)
    assert done.exit_code == 0, done.output
    ((model, engine, _),) = models
    assert model == "m" and engine == {"max_num_seqs": 3, "show_progress": True}
    assert "lines done" in done.stdout and "TTFT" in done.stdout
    choice = read_output(output)["r3"]["response"]["body"]["choices"][0]
    assert len(choice["token_ids"]) == 4 and "seed" in choice
    again = invoke(runner, source, "-o", output, "--model", "m", *options, "--max-num-seqs", 9)
    assert again.exit_code == 0 and len(models) == 1


def test_bad_lines_end_with_2_and_json_is_for_machines(
    runner: CliRunner, models: list, source: Path, tmp_path: Path
) -> None:
    write_lines(source, [good_line("a"), b"[]"])
    done = invoke(runner, source, "-o", tmp_path / "o", "--model", "m", "--progress", "json")
    assert done.exit_code == 2
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["event"] for one in events] == ["progress", "summary"]
    assert (events[-1]["done"], events[-1]["failed"], events[-1]["exit_code"]) == (1, 1, 2)


def test_a_job_that_fails_ends_with_1(
    runner: CliRunner, models: list, source: Path, tmp_path: Path
) -> None:
    for arguments, named in (
        ([tmp_path / "none", "-o", tmp_path / "o", "--model", "m"], "was not found"),
        ([source, "-o", tmp_path / "o", "--model", "m", "--shard", "2/2"], "shard=2/2"),
        ([source, "-o", tmp_path / "o", "--model", "m", "--temperature", 3], "temperature"),
    ):
        done = invoke(runner, *arguments)
        assert done.exit_code == 1 and named in done.stderr, done.output
        assert "Traceback" not in done.output
    assert not models


def test_an_interrupt_ends_with_130(
    runner: CliRunner,
    models: list,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(batch, "run_requests", interrupted)
    done = invoke(runner, source, "-o", tmp_path / "o", "--model", "m")
    assert done.exit_code == 130


def test_shards_write_files_of_their_own(
    runner: CliRunner, models: list, source: Path, tmp_path: Path
) -> None:
    for index in range(2):
        shard = ["--shard", f"{index}/2", "--progress", "none"]
        done = invoke(runner, source, "-o", tmp_path / "o.jsonl", "--model", "m", *shard)
        assert done.exit_code == 0 and not done.stdout
    names = [f"o-0000{index}-of-00002.jsonl" for index in range(2)]
    assert [len(read_output(tmp_path / name)) for name in names] == [5, 4]


def test_a_cluster_gets_what_the_options_say(
    runner: CliRunner, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[tuple, dict[str, Any]]] = []

    def ray_batch(*arguments: Any, **options: Any) -> BatchSummary:
        asked.append((arguments, options))
        lines = {"done": 7, "failed": 2, "total": 9, "interrupted": False, "fingerprint": "f"}
        return BatchSummary(output=tmp_path / "out", **lines, run={}, engine={})  # type: ignore[arg-type]

    monkeypatch.setattr(batch_command, "ray_batch", ray_batch)
    options = ["--ray", "--num-engines", 4, "--gpus-per-engine", 0.5, "--part-lines", 100]
    options += ["--temperature", 0.5, "--max-num-seqs", 3, "--retry-errors", "--progress", "json"]
    done = invoke(runner, source, "-o", tmp_path / "out", "--model", "m", *options)
    assert done.exit_code == 2, done.output
    assert json.loads(done.stdout) == {"event": "summary", **_summary_json(tmp_path / "out")}
    ((arguments, given),) = asked
    assert arguments == (str(source), tmp_path / "out", "m")
    assert given == {
        **{"num_engines": 4, "gpus_per_engine": 0.5, "part_lines": 100, "progress": "json"},
        **{"params": {"temperature": 0.5}, "engine": {"max_num_seqs": 3}, "retry_errors": True},
    }


def _summary_json(output: Path) -> dict[str, Any]:
    lines = {"done": 7, "failed": 2, "total": 9, "interrupted": False, "fingerprint": "f"}
    return {"output": str(output), **lines, "run": {}, "engine": {}, "exit_code": 2}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--num-engines", 2], "num_engines=2 .*add --ray"),
        (["--no-ray", "--gpus-per-engine", 1], "gpus_per_engine=1.0 .*add --ray"),
        (["--ray"], r"jaxinfer\[ray\]"),
    ],
)
def test_what_is_no_job_on_a_cluster(
    runner: CliRunner,
    models: list,
    source: Path,
    tmp_path: Path,
    options: list,
    named: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    done = invoke(runner, source, "-o", tmp_path / "o", "--model", "m", *options)
    assert done.exit_code == 1 and re.search(named, done.stderr), done.output
    assert not models and not (tmp_path / "o").exists()


def test_standard_input(runner: CliRunner, models: list, source: Path, tmp_path: Path) -> None:
    arguments = ["batch", "-", "-o", str(tmp_path / "o"), "--model", "m", "--ordered"]
    done = runner.invoke(app, arguments, input=source.read_bytes())
    assert done.exit_code == 0, done.output
    assert list(read_output(tmp_path / "o")) == [f"r{number}" for number in range(9)]
