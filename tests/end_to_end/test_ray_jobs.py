"""Batch jobs on a local Ray: two actors, one of which is killed."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from typer.testing import CliRunner

from jaxinfer.jobs import ray_batch, ray_map, run_batch
from jaxinfer.jobs.cli import app
from tests.end_to_end.engines import SMALL
from tests.end_to_end.test_batch_jobs import command, output_texts, write_job
from tests.support.byte_tokenizer import save_byte_tokenizer
from tests.support.tiny_models import write_tiny

ray = pytest.importorskip("ray", reason="the ray extra is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # Ray's own, of sockets and files it leaves to the end
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tiny(tmp_path_factory.mktemp("tiny"), eos_token_id=256)
    save_byte_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()


@pytest.fixture
def engine(programs: Path) -> dict[str, Any]:
    return {**SMALL, "compilation_cache_dir": str(programs), "max_num_batched_tokens": 16}


def actor_processes() -> list[int]:
    """Processes of this test's Ray that hold an engine."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            title = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        is_engine = title.startswith(b"ray::") and b"PartWorker" in title
        if is_engine and entry.name.isdigit() and is_mine(entry):
            found.append(int(entry.name))
    return found


def is_mine(entry: Path) -> bool:
    """True for a descendant of this process."""
    process = entry
    while process.name not in ("0", "1"):
        if process.name == str(os.getpid()):
            return True
        try:
            status = (process / "stat").read_text()
        except OSError:
            return False
        process = process.parent / status.rpartition(")")[2].split()[1]
    return False


def writer_of(part: Path) -> int | None:
    """The engine's process that has the part's file open."""
    for process in actor_processes():
        try:
            opened = [os.stat(one.path) for one in os.scandir(f"/proc/{process}/fd")]
        except OSError:  # it ended, or a file was closed meanwhile
            continue
        if any(os.path.samestat(one, part.stat()) for one in opened):
            return process
    return None


def kill_amid_a_part(folder: Path, lines: range, held: dict[str, bytes], over: Event) -> None:
    """Kills an engine when its part's file has so many lines; `held` gets what the file held."""
    while not held and not over.is_set():
        for part in folder.glob("part-*.jsonl"):
            process = writer_of(part) if part.read_bytes().count(b"\n") in lines else None
            if process is not None and not held:
                os.kill(process, signal.SIGKILL)
                time.sleep(0.2)
                held[part.name] = part.read_bytes()
        time.sleep(0.01)


def folder_texts(folder: Path, tmp_path: Path) -> dict[str, Any]:
    joined = tmp_path / "joined.jsonl"
    parts = sorted(folder.glob("part-*.jsonl"))
    joined.write_bytes(b"".join(part.read_bytes() for part in parts))
    return output_texts(joined)


def test_an_actor_that_dies_is_replaced_and_nothing_is_lost(
    cluster: None, tmp_path: Path, model: Path, engine: dict[str, Any]
) -> None:
    """Promise 9, with a worker in the place of the job."""
    source, folder = write_job(tmp_path / "in.jsonl", 300, most_tokens=100), tmp_path / "out"
    run_batch(source, tmp_path / "wanted.jsonl", model, engine=engine, include=["token_ids"])
    held, over = dict[str, bytes](), Event()
    killer = Thread(target=kill_amid_a_part, args=(folder, range(5, 60), held, over))
    killer.start()
    options: dict[str, Any] = {"num_engines": 2, "part_lines": 100, "include": ["token_ids"]}
    summary = ray_batch(source, folder, model, engine=engine, **options)
    over.set()
    killer.join()
    assert held, "no actor was killed: the job ended too soon"
    assert (summary.done, summary.failed, summary.exit_code) == (294, 6, 2)
    wanted = output_texts(tmp_path / "wanted.jsonl")
    assert folder_texts(folder, tmp_path) == wanted
    # What the dead one had finished stands as it was, and was not computed again.
    ((name, data),) = held.items()
    finished = data[: data.rfind(b"\n") + 1]
    assert (folder / name).read_bytes().startswith(finished)
    good = sum(json.loads(line)["error"] is None for line in finished.splitlines())
    assert summary.run["ttft_s"]["count"] == 294 - good < 294
    facts = json.loads((tmp_path / "out.summary.json").read_text())
    assert facts["done"] == 294 and facts["engine"]["compile_seconds"] > 0
    # Once more: nothing is left. With a part gone, its lines alone are run.
    assert ray_batch(source, folder, model, engine=engine, **options).run["completion_tokens"] == 0
    sorted(folder.glob("part-*.jsonl"))[1].unlink()
    again = ray_batch(source, folder, model, engine=engine, **options)
    assert again.done == 294 and again.run["ttft_s"]["count"] == 98
    assert folder_texts(folder, tmp_path) == wanted


def test_the_command(cluster: None, tmp_path: Path, model: Path, engine: dict[str, Any]) -> None:
    source, folder = write_job(tmp_path / "in.jsonl", 30), tmp_path / "out"
    run_batch(source, tmp_path / "wanted.jsonl", model, engine=engine, include=["token_ids"])
    arguments = command(source, folder, model, engine)[3:]  # without the interpreter's part
    options = ["--ray", "--num-engines", "2", "--part-lines", "10"]
    done = CliRunner().invoke(app, [*arguments, *options])
    assert done.exit_code == 2, done.output  # a line that is too long
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events[-1]["event"] == "summary"
    assert (events[-1]["done"], events[-1]["failed"]) == (29, 1)
    assert events[-1]["engine"]["num_programs"] > 0 and events[-1]["run"]["tpot_s"]["p99"] > 0
    assert len(list(folder.glob("part-*.jsonl"))) == 3
    assert folder_texts(folder, tmp_path) == output_texts(tmp_path / "wanted.jsonl")


def test_one_bad_row_does_not_end_a_job(
    cluster: None, tmp_path: Path, model: Path, engine: dict[str, Any]
) -> None:
    """BB-52, ray#59194, #57140."""
    rows = [
        {"prompt": "abc", "max_tokens": 3, "label": "x"},
        {"prompt": "y" * 400, "max_tokens": 3, "label": "y"},
        {"prompt": "de", "max_tokens": 3, "label": "z"},
    ]
    found = ray_map(
        ray.data.from_items(rows), model, engine=engine, params={"ignore_eos": True}
    ).take_all()
    found.sort(key=lambda row: row["label"])
    assert [row["label"] for row in found] == ["x", "y", "z"]
    assert [row["error"] is None for row in found] == [True, False, True]
    assert "400" in found[1]["error"] and found[1]["generated_text"] is None
    assert found[0]["generated_text"] and found[0]["finish_reason"] == "length"
