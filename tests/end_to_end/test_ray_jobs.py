"""Batch jobs on a local Ray: two actors, one of which is killed."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxinfer.jobs import ray_batch, ray_map, run_batch
from tests.end_to_end.engines import SMALL
from tests.end_to_end.test_batch_jobs import output_texts, write_job
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


def kill_one_actor(
    folder: Path, after_lines: int, killed: list[int], is_over: threading.Event
) -> None:
    while not killed and not is_over.is_set():
        held = sum(part.read_bytes().count(b"\n") for part in folder.glob("part-*.jsonl"))
        actors = actor_processes() if held >= after_lines else []
        if actors:
            killed.append(actors[0])
            os.kill(actors[0], signal.SIGKILL)
        time.sleep(0.05)


def folder_texts(folder: Path, tmp_path: Path) -> dict[str, Any]:
    joined = tmp_path / "joined.jsonl"
    parts = sorted(folder.glob("part-*.jsonl"))
    joined.write_bytes(b"".join(part.read_bytes() for part in parts))
    return output_texts(joined)


def test_an_actor_that_dies_is_replaced_and_nothing_is_lost(
    cluster: None, tmp_path: Path, model: Path, engine: dict[str, Any]
) -> None:
    """Promise 9, with a worker in the place of the job."""
    source, folder = write_job(tmp_path / "in.jsonl", 300), tmp_path / "out"
    run_batch(source, tmp_path / "wanted.jsonl", model, engine=engine, include=["token_ids"])
    killed, is_over = list[int](), threading.Event()
    killer = threading.Thread(target=kill_one_actor, args=(folder, 30, killed, is_over))
    killer.start()
    options: dict[str, Any] = {"num_actors": 2, "part_lines": 20, "include": ["token_ids"]}
    summary = ray_batch(source, folder, model, engine=engine, **options)
    is_over.set()
    killer.join()
    assert killed, "no actor was killed: the job ended too soon"
    assert (summary.done, summary.failed, summary.exit_code) == (294, 6, 2)
    wanted = output_texts(tmp_path / "wanted.jsonl")
    assert folder_texts(folder, tmp_path) == wanted
    facts = json.loads((tmp_path / "out.summary.json").read_text())
    assert facts["done"] == 294 and facts["run"]["ttft_s"]["count"] > 0
    # Once more: nothing is left. With two parts gone, their lines alone are run.
    assert ray_batch(source, folder, model, engine=engine, **options).run["completion_tokens"] == 0
    for part in sorted(folder.glob("part-*.jsonl"))[:2]:
        part.unlink()
    again = ray_batch(source, folder, model, engine=engine, **options)
    assert again.done == 294 and again.run["ttft_s"]["count"] < 45
    assert folder_texts(folder, tmp_path) == wanted


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
