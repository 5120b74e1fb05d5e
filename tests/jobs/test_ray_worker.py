"""Parts of a Ray job without Ray: cut, packed, run, and run again after a death."""

import json
from pathlib import Path

import pytest

from jaxinfer.errors import ConfigError
from jaxinfer.jobs import ray_job, ray_worker
from jaxinfer.jobs.batch_input import InputLine, open_input
from jaxinfer.jobs.batch_ledger import Landed, Ledger
from jaxinfer.jobs.batch_request import decode_line
from jaxinfer.jobs.batch_settings import BatchSettings
from jaxinfer.jobs.batch_statistics import joined_facts
from jaxinfer.jobs.ray_job import Part, cut_parts, ray_batch
from jaxinfer.jobs.ray_worker import PartWorker, WorkerSetup, pack_lines, unpack_lines
from tests.jobs.batch_jobs import good_line, read_output, run_job, texts, write_lines
from tests.support.fake_engine import FakeLLM


@pytest.fixture
def source(tmp_path: Path) -> Path:
    lines = [good_line(f"r{number}") for number in range(10)]
    return write_lines(
        tmp_path / "in.jsonl", [*lines[:4], b"", b'{"prompt":"\xff\x00"}', *lines[4:]]
    )


def parts_of(source: Path, tmp_path: Path, part_lines: int, done: set[int]) -> list[Part]:
    opened = open_input(source, tmp_path / "spool")
    ledger = Ledger(tmp_path / "ledger")
    rows = ((one, decode_line(one, single_file=True).custom_id) for one in opened.lines())
    ledger.fill(rows, (0, 1))
    ledger.land([Landed(position=one, failed=False, offset=0, size=1) for one in done])
    parts = list(cut_parts(opened, ledger, part_lines, 11))
    ledger.close()
    return parts


def test_parts_keep_their_names_whatever_is_done(source: Path, tmp_path: Path) -> None:
    whole = parts_of(source, tmp_path, 4, set())
    assert [len(part.pending) for part in whole] == [4, 4, 3]
    left = parts_of(source, tmp_path, 4, {0, 2, 4, 5, 6, 7})
    assert [(part.name, part.pending) for part in left] == [
        (whole[0].name, (1, 3)),
        (whole[2].name, (0, 1, 2)),
    ]
    assert (left[1].position, left[1].number) == (8, 10)
    data = source.read_bytes()[left[1].offset :]
    assert data.startswith(b'{"custom_id": "r7"')


def test_lines_are_packed_whatever_bytes_they_hold(source: Path, tmp_path: Path) -> None:
    lines = list(open_input(source, tmp_path / "spool").lines())
    unpacked = unpack_lines(pack_lines(iter(lines)))
    assert [(one.data, one.number, one.position) for one in unpacked] == [
        (one.data, one.number, one.position) for one in lines
    ]


def worker(folder: Path, monkeypatch: pytest.MonkeyPatch, llm: FakeLLM) -> PartWorker:
    monkeypatch.setattr(ray_worker.session, "open_llm", lambda *_, **__: llm)
    ask = BatchSettings(source="in.jsonl", output=folder / "part.jsonl", model="fake")
    setup = WorkerSetup(
        ask=ask, options={}, folder=folder, job="j" * 12, model_digest="m", single_file=True
    )
    return PartWorker(setup)


def test_a_part_whose_worker_died_is_not_computed_twice(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[InputLine] = list(open_input(source, tmp_path / "spool").lines())
    row = {"part": "part-0.jsonl", "lines": pack_lines(iter(lines))}
    folder = tmp_path / "out"
    folder.mkdir()
    first = worker(folder, monkeypatch, FakeLLM())(row)
    assert (first["done"], first["failed"]) == (10, 1)
    whole = (folder / "part-0.jsonl").read_bytes()
    cut = whole.splitlines(keepends=True)
    (folder / "part-0.jsonl").write_bytes(b"".join(cut[:6]) + cut[6][:40])
    llm = FakeLLM()
    again = worker(folder, monkeypatch, llm)(row)
    assert (again["done"], again["failed"]) == (10, 1) and again["worker"] != first["worker"]
    assert json.loads(again["engine"])["compile_seconds"] == 1.5
    left = sum(b'"error": null' in line for line in cut[6:])
    assert llm.engine.metrics.generation_tokens == 4 * left < 40
    assert json.loads(again["statistics"])["completion_tokens"] == 4 * left
    run_job(source, tmp_path / "wanted.jsonl")
    assert texts(folder / "part-0.jsonl") == texts(tmp_path / "wanted.jsonl")
    assert len(read_output(folder / "part-0.jsonl")) == 10


def test_facts_of_engines_join_as_sums_and_peaks() -> None:
    first = {"compile_seconds": 2.0, "kv_cache_usage_peak_perc": 0.5, "num_programs": 5.0}
    second = {"compile_seconds": 1.0, "kv_cache_usage_peak_perc": 0.75, "num_programs": 5.0}
    joined = joined_facts([first, {**second, "prefix_cache_hits": 3.0}])
    peaks = {"kv_cache_usage_peak_perc": 0.75, "num_programs": 5.0}
    assert joined == {"compile_seconds": 3.0, "prefix_cache_hits": 3.0, **peaks}
    assert joined_facts([]) == {}


@pytest.mark.parametrize(
    "wrong", [{"num_engines": 0}, {"gpus_per_engine": -1}, {"cpus_per_engine": float("inf")}]
)
def test_resources_that_cannot_be(
    source: Path, tmp_path: Path, wrong: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_job, "_import_ray", lambda: None)
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))}="):
        ray_batch(source, tmp_path / "out", "m", **wrong)
    assert not (tmp_path / "out").exists()


def test_a_cluster_writes_a_folder(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_job, "_import_ray", lambda: None)
    with pytest.raises(ConfigError, match="is a file; on a cluster"):
        ray_batch(source, source, "m")
    with pytest.raises(ConfigError, match="ordered has no meaning"):
        ray_batch(source, tmp_path / "out", "m", ordered=True)


def test_ray_that_is_missing_names_the_extra(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ConfigError, match=r"jaxinfer\[ray\]"):
        ray_batch(source, tmp_path / "out", "m")
