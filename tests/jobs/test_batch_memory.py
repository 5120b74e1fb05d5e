"""Memory of batch jobs: flat, whatever comes in."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.jobs.batch_jobs import read_output
from tests.repository.tree import ROOT

# VmHWM and not ru_maxrss: that one also counts what the process was before it became this program.
MEASURED = """
import re, sys, time
from pathlib import Path
from tests.jobs.batch_jobs import run_job
from tests.support.fake_engine import FakeLLM
start = time.process_time()
llm = FakeLLM(num_slots=64)
summary = run_job(Path(sys.argv[1]), Path(sys.argv[2]), llm, ordered=len(sys.argv) > 3)
peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
print(summary.done, summary.failed, peak, time.process_time() - start)
"""


def measure(source: Path, output: Path, *more: str) -> tuple[int, int, float, float]:
    """(done, failed, peak MiB, CPU seconds) of a job in a process of its own."""
    command = [sys.executable, "-c", MEASURED, str(source), str(output), *more]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    lines_done, failed, peak, seconds = done.stdout.split()
    return int(lines_done), int(failed), float(peak), float(seconds)


def write_many(path: Path, count: int, extra: bytes = b"") -> Path:
    with path.open("wb") as file:
        for number in range(count):
            file.write(b'{"custom_id":"r%d","prompt":"p%d","max_tokens":1}\n' % (number, number))
            if number == count // 2:
                file.write(extra)
    return path


def test_a_huge_line_is_an_error_line_and_takes_no_memory(tmp_path: Path) -> None:
    """BB-51, vllm#30268: 32 MB of prompt among a thousand lines; two runs differ by 2 MiB or so."""
    huge = b'{"custom_id":"huge","prompt":"' + b"x" * 32_000_000 + b'"}\n'
    plain = write_many(tmp_path / "plain.jsonl", 1000)
    source = write_many(tmp_path / "in.jsonl", 1000, huge)
    *_, usual, _ = measure(plain, tmp_path / "plain-out.jsonl")
    done, failed, peak, _ = measure(source, tmp_path / "out.jsonl")
    assert (done, failed) == (1000, 1) and peak < usual + 12
    rows = read_output(tmp_path / "out.jsonl")
    assert rows["huge"]["error"]["line"] == "in.jsonl:502"
    assert len(rows) == 1001


@pytest.mark.slow
@pytest.mark.parametrize("count", [100_000, 1_000_000])
def test_memory_is_flat_whatever_the_size_of_the_input(
    tmp_path: Path, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """BB-51, vllm#30268; prints what a line costs the host."""
    *_, usual, _ = measure(write_many(tmp_path / "a.jsonl", 5000), tmp_path / "a-out.jsonl", "x")
    source = write_many(tmp_path / "in.jsonl", count)
    start = time.monotonic()
    done, failed, peak, seconds = measure(source, tmp_path / "out.jsonl", "ordered")
    with capsys.disabled():
        print(
            f"\n{count} lines: {1e6 * seconds / count:.0f} us of CPU a line, "
            f"{time.monotonic() - start:.0f} s, peak {peak:.0f} MiB (5,000 lines: {usual:.0f})"
        )
    assert (done, failed) == (count, 0)
    assert peak < usual + 48  # SQLite's cache and its sorting of ids, 16 MiB each, and some room
    with (tmp_path / "out.jsonl").open("rb") as file:
        for number, line in enumerate(file):
            assert b'"custom_id": "r%d"' % number in line
    assert number == count - 1
    os.unlink(tmp_path / "out.jsonl")
