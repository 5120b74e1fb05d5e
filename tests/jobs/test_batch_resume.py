"""Jobs that end before their time, and go on: deaths, changes, stops, full disks."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jaxinfer.errors import ConfigError, JaxInferError, RequestError
from jaxinfer.jobs.batch_ledger import Ledger
from tests.jobs.batch_jobs import (
    good_line,
    make_job,
    read_output,
    run_job,
    texts,
    write_lines,
)
from tests.repository.tree import ROOT
from tests.support.fake_engine import FakeLLM

LINES = [good_line(f"r{number}") for number in range(30)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "in.jsonl", LINES)


class Crash(Exception):
    """A death in the midst of a job."""


def crash_after(llm: FakeLLM, steps: int) -> None:
    def before_step() -> None:
        if llm.engine.num_steps == steps:
            raise Crash

    llm.engine.before_step = before_step


@pytest.mark.parametrize("steps", [1, 9, 20])
def test_a_job_that_died_goes_on(source: Path, tmp_path: Path, steps: int) -> None:
    run_job(source, tmp_path / "wanted.jsonl")
    output, llm = tmp_path / "out.jsonl", FakeLLM()
    crash_after(llm, steps)
    with pytest.raises(Crash):
        run_job(source, output, llm)
    assert llm.is_closed and not llm.engine.has_work
    held = len(read_output(output))
    assert held < 30
    with output.open("ab") as file:
        file.write(b'{"id": "batch_req_torn')
    again = FakeLLM()
    assert run_job(source, output, again).done == 30
    assert again.engine.metrics.generation_tokens == 4 * (30 - held)
    assert texts(output) == texts(tmp_path / "wanted.jsonl")


def test_what_a_power_cut_leaves_is_run_again(source: Path, tmp_path: Path) -> None:
    """Zeros where a block never came to the disk, and a line that is there twice."""
    output = tmp_path / "out.jsonl"
    run_job(source, output)
    wanted, lines = texts(output), output.read_bytes().splitlines(keepends=True)
    output.write_bytes(b"".join([*lines[:5], b"\0" * 90 + b"\n", lines[2], *lines[6:20]]))
    assert run_job(source, output).done == 30
    assert texts(output) == wanted


def test_a_changed_line_is_refused_and_with_force_run_again(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    run_job(source, output)
    before = texts(output)
    write_lines(source, [*LINES[:4], good_line("r4", prompt="other"), *LINES[5:29]])
    with pytest.raises(ConfigError, match="2 lines.*'r4' is another now.*'r29' is not in"):
        run_job(source, output)
    llm = FakeLLM()
    run_job(source, output, llm, force=True)
    assert llm.engine.metrics.generation_tokens == 4
    after = texts(output)
    assert {k: v for k, v in before.items() if k not in ("r4", "r29")} == {
        k: v for k, v in after.items() if k != "r4"
    }
    assert after["r4"] != before["r4"]


@pytest.mark.parametrize(
    "changes",
    [{"model_digest": "other"}, {"seed": 1}, {"params": {"max_tokens": 9}}, {"include": ("seed",)}],
    ids=lambda changes: next(iter(changes)),
)
def test_a_changed_job_is_refused(source: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    output = tmp_path / "out.jsonl"
    run_job(source, output)
    with pytest.raises(ConfigError, match="30 lines.*are others now.*--force"):
        run_job(source, output, **changes)
    assert run_job(source, output, force=True, **changes).done == 30
    assert len(read_output(output)) == 30


def test_other_slots_are_the_same_job(source: Path, tmp_path: Path) -> None:
    run_job(source, tmp_path / "out.jsonl", options={"max_num_seqs": 4})
    assert run_job(source, tmp_path / "out.jsonl", options={"max_num_seqs": 9}).done == 30


def test_errors_are_tried_again_on_request(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [*LINES, good_line("long", prompt="x" * 90)])
    output = tmp_path / "out.jsonl"
    assert run_job(source, output).failed == 1
    assert run_job(source, output, FakeLLM(max_model_len=128)).failed == 1
    summary = run_job(source, output, FakeLLM(max_model_len=128), retry_errors=True)
    assert (summary.done, summary.failed, summary.exit_code) == (31, 0, 0)
    assert len(read_output(output)) == 31


def test_a_file_of_somebody_else_is_left_alone(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    output.write_bytes(b'{"precious": 1}\n')
    with pytest.raises(ConfigError, match="no output of a batch job"):
        run_job(source, output, force=True)
    assert output.read_bytes() == b'{"precious": 1}\n'


def test_an_output_that_is_being_written_is_refused(source: Path, tmp_path: Path) -> None:
    llm, refused = FakeLLM(), []

    def second() -> None:
        with pytest.raises(ConfigError, match="another process is writing"):
            run_job(source, tmp_path / "out.jsonl")
        refused.append(True)
        llm.engine.before_step = lambda: None

    llm.engine.before_step = second
    assert run_job(source, tmp_path / "out.jsonl", llm).done == 30 and refused


def test_a_stop_finishes_what_is_running(source: Path, tmp_path: Path) -> None:
    run_job(source, tmp_path / "wanted.jsonl")
    llm = FakeLLM(num_slots=4)
    job = make_job(source, tmp_path / "out.jsonl", llm)

    def stop() -> None:
        job.stop.wanted = llm.engine.num_steps >= 5

    llm.engine.before_step = stop
    summary = job.run()
    assert summary.exit_code == 130 and summary.interrupted
    assert (summary.done, summary.failed) == (8, 0)  # four were done, four were running
    assert run_job(source, tmp_path / "out.jsonl").exit_code == 0
    assert texts(tmp_path / "out.jsonl") == texts(tmp_path / "wanted.jsonl")


def test_a_second_ctrl_c_stops_at_once_and_the_job_goes_on(source: Path, tmp_path: Path) -> None:
    run_job(source, tmp_path / "wanted.jsonl")
    output, llm = tmp_path / "out.jsonl", FakeLLM(num_slots=4)
    before = signal.getsignal(signal.SIGINT)

    def press_twice() -> None:
        if llm.engine.num_steps == 6:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)

    llm.engine.before_step = press_twice
    with pytest.raises(KeyboardInterrupt):
        run_job(source, output, llm)
    assert llm.engine.num_steps == 6 and llm.is_closed and signal.getsignal(signal.SIGINT) is before
    assert len(read_output(output)) == 4  # of four steps each; four were running
    again = FakeLLM()
    assert run_job(source, output, again).exit_code == 0
    assert again.engine.metrics.generation_tokens == 4 * 26
    assert texts(output) == texts(tmp_path / "wanted.jsonl")


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from tests.jobs.batch_jobs import run_job
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
source, output, limit = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
import jaxinfer.jobs.batch_file as batch_file
batch_file.GROUP_LINES = 3
import jaxinfer.jobs.batch_ledger, sqlite3
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
run_job(source, output)
"""


def test_a_full_disk_stops_cleanly(tmp_path: Path) -> None:
    """The limit on file sizes stands for the disk: a write comes through in part, then fails."""
    source = write_lines(tmp_path / "in.jsonl", [good_line(f"r{n}") for n in range(300)])
    output, limit = tmp_path / "out.jsonl", 100_000
    command = [sys.executable, "-c", FULL_DISK, str(source), str(output), str(limit)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and "cannot be written" in done.stderr, done.stderr
    assert "Make room" in done.stderr
    held = read_output(output)
    assert 0 < len(held) < 300 and limit - 2000 < output.stat().st_size <= limit
    assert not (tmp_path / "out.jsonl.job").exists()
    assert run_job(source, output).done == 300


def test_strict_ends_the_job_at_the_first_error(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [*LINES[:3], b"[]", *LINES[3:]])
    with pytest.raises(RequestError, match="in.jsonl:4: .*not an object"):
        run_job(source, tmp_path / "out.jsonl", options={"strict": True})


def test_an_input_that_changes_meanwhile_ends_the_job(source: Path, tmp_path: Path) -> None:
    llm = FakeLLM(num_slots=1)
    llm.engine.before_step = lambda: write_lines(source, LINES[::-1]) and None
    many = [good_line(f"r{number}", prompt="p" * 30) for number in range(3000)]
    write_lines(source, many)
    with pytest.raises(JaxInferError, match="changed while"):
        run_job(source, tmp_path / "out.jsonl", llm)


def test_a_ledger_without_room_is_one_message(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Ledger, "land", fail)
    with pytest.raises(JaxInferError, match="disk is full.*same command again"):
        run_job(source, tmp_path / "out.jsonl")
    monkeypatch.undo()
    assert run_job(source, tmp_path / "out.jsonl").done == 30
    assert len(read_output(tmp_path / "out.jsonl")) == 30


def test_a_renamed_input_is_the_same_input(source: Path, tmp_path: Path) -> None:
    write_lines(source, [*LINES, b"[]"])
    run_job(source, tmp_path / "out.jsonl")
    job = make_job(source.rename(tmp_path / "renamed.jsonl"), tmp_path / "out.jsonl")
    assert job.run().failed == 1
