"""Whole batch jobs with a fake LLM: bad lines, resuming, stopping, order, shards."""

import gzip
import json
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from jaxinfer.errors import ConfigError
from jaxinfer.jobs.batch_output import EXTRAS
from jaxinfer.jobs.batch_request import line_seed
from tests.jobs.batch_jobs import (
    BAD_LINES,
    bad_line,
    good_line,
    make_job,
    read_output,
    run_job,
    texts,
    write_lines,
)
from tests.support.fake_engine import FakeLLM

LINES = [good_line(f"r{number}") for number in range(30)]


def refuse_to_open() -> Any:
    raise AssertionError("the model was opened")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "in.jsonl", LINES)


def test_every_line_gets_its_result(source: Path, tmp_path: Path) -> None:
    llm = FakeLLM()
    summary = run_job(source, tmp_path / "out.jsonl", llm)
    assert (summary.done, summary.failed, summary.total, summary.exit_code) == (30, 0, 30, 0)
    rows = read_output(tmp_path / "out.jsonl")
    assert set(rows) == {f"r{number}" for number in range(30)}
    body = rows["r7"]["response"]["body"]
    assert body["object"] == "text_completion" and body["model"] == "fake"
    assert len(body["choices"][0]["text"]) == 4
    assert body["usage"]["completion_tokens"] == 4 and body["usage"]["prompt_tokens"] == 4
    assert llm.is_closed and not llm.engine.has_work
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"in.jsonl", "out.jsonl", "out.jsonl.summary.json"}


def test_an_empty_file_gives_an_empty_output(tmp_path: Path) -> None:
    """BB-29: an empty job file; no model is opened for it."""
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"\n \r\n\xef\xbb\xbf\n")
    job = make_job(source, tmp_path / "out.jsonl")
    job.open_model = refuse_to_open
    assert job.run().exit_code == 0
    assert (tmp_path / "out.jsonl").read_bytes() == b""


def test_every_kind_of_bad_line_is_one_error_line(tmp_path: Path) -> None:
    """BB-30, BB-48, BB-50: headroom#2316, litellm#37457, vllm#8347, vllm#6416."""
    assert len(BAD_LINES) >= 25
    lines = []
    for place in range(len(BAD_LINES)):
        lines += [good_line(f"good{place}"), bad_line(place)]
    source = write_lines(tmp_path / "in.jsonl", lines)
    alone = write_lines(tmp_path / "good.jsonl", lines[::2])
    summary = run_job(source, tmp_path / "out.jsonl", max_line_bytes=8000)
    assert (summary.done, summary.failed, summary.exit_code) == (len(BAD_LINES),) * 2 + (2,)
    run_job(alone, tmp_path / "alone.jsonl", max_line_bytes=8000)
    found = texts(tmp_path / "out.jsonl")
    assert {k: v for k, v in found.items() if k.startswith("good")} == texts(
        tmp_path / "alone.jsonl"
    )
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_bytes().splitlines()]
    by_place = {row["error"]["line"]: row for row in rows if row["error"]}
    for place, (what, line, named) in enumerate(BAD_LINES):
        row = by_place[f"in.jsonl:{2 * place + 2}"]
        assert named in row["error"]["message"], (what, row["error"])
        readable = b"{id}" in line
        assert row["custom_id"] == (f"bad{place}" if readable else None), what


@pytest.mark.parametrize("other", [b'{"custom_id": "r3", "prompt": "b"}', b'{"custom_id": "r3"}'])
def test_an_id_that_is_there_twice_is_found_before_anything_runs(
    tmp_path: Path, other: bytes
) -> None:
    """BB-49, sglang#3754."""
    source = write_lines(tmp_path / "in.jsonl", [*LINES, other])
    job = make_job(source, tmp_path / "out.jsonl")
    job.open_model = refuse_to_open
    with pytest.raises(ConfigError, match=r"'r3' at in.jsonl:4 and in.jsonl:31"):
        job.run()
    assert not (tmp_path / "out.jsonl").exists()


def test_an_id_that_two_shards_have(tmp_path: Path) -> None:
    """BB-49, sglang#3754."""
    folder = tmp_path / "in"
    folder.mkdir()
    write_lines(folder / "a.jsonl", LINES[:4])
    write_lines(folder / "b.jsonl", LINES[3:])
    with pytest.raises(ConfigError, match=r"'r3' at a.jsonl:4 and b.jsonl:1"):
        run_job(folder, tmp_path / "out.jsonl")


@pytest.mark.parametrize("custom_id", ["", 5, None])
def test_a_batch_line_without_an_id_is_found_before_anything_runs(
    tmp_path: Path, custom_id: object
) -> None:
    line = {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": {}}
    source = write_lines(tmp_path / "in.jsonl", [*LINES, json.dumps(line).encode()])
    job = make_job(source, tmp_path / "out.jsonl")
    job.open_model = refuse_to_open
    with pytest.raises(ConfigError, match=r"in.jsonl:31: custom_id="):
        job.run()


def test_the_same_job_twice_in_one_process(source: Path, tmp_path: Path) -> None:
    """BB-49, sglang#3754: into another output the same; into the same one, nothing is run."""
    llm = FakeLLM()
    run_job(source, tmp_path / "a.jsonl", llm)
    run_job(source, tmp_path / "b.jsonl", llm)
    assert texts(tmp_path / "a.jsonl") == texts(tmp_path / "b.jsonl")
    before = (tmp_path / "a.jsonl").read_bytes()
    job = make_job(source, tmp_path / "a.jsonl")
    job.open_model = refuse_to_open
    assert job.run().done == 30
    assert (tmp_path / "a.jsonl").read_bytes() == before


def test_marks_carriage_returns_and_blank_lines_change_nothing(tmp_path: Path) -> None:
    """BB-47, jsonlines#68, recall#38: two such files joined."""
    bom = b"\xef\xbb\xbf"
    joined = b""
    for first in (0, 2):
        joined += bom + LINES[first] + b"\r\n\r\n   \r\n" + LINES[first + 1] + b"\r\n"
    messy = tmp_path / "messy.jsonl"
    messy.write_bytes(joined + b"[bad]")
    clean = write_lines(tmp_path / "clean.jsonl", LINES[:4])
    summary = run_job(messy, tmp_path / "out.jsonl")
    assert (summary.done, summary.failed) == (4, 1)
    run_job(clean, tmp_path / "wanted.jsonl")
    assert texts(tmp_path / "out.jsonl") == texts(tmp_path / "wanted.jsonl")
    error = json.loads((tmp_path / "out.jsonl").read_bytes().splitlines()[0])["error"]
    assert error["line"] == "messy.jsonl:9"


def test_ordered_output_is_in_the_order_of_the_input(tmp_path: Path) -> None:
    lines = [good_line(f"r{n}", max_tokens=1 + n % 7) for n in range(40)] + [b"[]"]
    source = write_lines(tmp_path / "in.jsonl", lines)
    run_job(source, tmp_path / "free.jsonl")
    run_job(source, tmp_path / "out.jsonl", ordered=True)
    wanted = [*(f"r{n}" for n in range(40))]
    assert list(read_output(tmp_path / "free.jsonl")) != wanted
    assert list(read_output(tmp_path / "out.jsonl")) == wanted
    assert run_job(source, tmp_path / "free.jsonl", ordered=True).done == 40  # afterwards too
    assert list(read_output(tmp_path / "free.jsonl")) == wanted


def test_shards_share_the_lines_among_them(source: Path, tmp_path: Path) -> None:
    run_job(source, tmp_path / "whole.jsonl")
    together: dict[Any, Any] = {}
    for index in range(4):
        output = tmp_path / f"out{index}.jsonl"
        summary = run_job(source, output, shard=(index, 4))
        assert summary.total == len(read_output(output)) in (7, 8)
        assert not set(together) & set(texts(output))
        together |= texts(output)
    assert together == texts(tmp_path / "whole.jsonl")


def test_seeds_come_from_the_job_and_the_id(tmp_path: Path) -> None:
    lines = [good_line("a"), good_line("b", prompt="p a"), good_line("c", seed=7)]
    source = write_lines(tmp_path / "in.jsonl", lines)
    run_job(source, tmp_path / "out.jsonl", include=EXTRAS, seed=3)
    rows = read_output(tmp_path / "out.jsonl")
    bodies = {name: row["response"]["body"] for name, row in rows.items()}
    seeds = {name: body["choices"][0]["seed"] for name, body in bodies.items()}
    assert seeds == {"a": line_seed(3, "a"), "b": line_seed(3, "b"), "c": 7}
    assert bodies["a"]["choices"][0]["text"] != bodies["b"]["choices"][0]["text"]
    assert all(body["system_fingerprint"].startswith("fp_") for body in bodies.values())
    assert len(bodies["a"]["choices"][0]["token_ids"]) == 4
    assert bodies["a"]["metrics"]["e2e_latency_s"] > 0
    assert bodies["a"]["metrics"]["num_generation_tokens"] == 4
    assert bodies["a"]["prompt_token_ids"] == list(b"p a")


def test_parameters_of_the_job_hold_where_a_line_says_nothing(tmp_path: Path) -> None:
    lines = [
        b'{"prompt": "a"}',
        good_line("own", max_tokens=2),
        b'{"messages": [{"role": "user", "content": "a"}]}',
    ]
    source = write_lines(tmp_path / "in.jsonl", lines)
    params = {"max_tokens": 6, "n": 2}
    run_job(source, tmp_path / "out.jsonl", params=params)
    found = texts(tmp_path / "out.jsonl")
    lengths = {name: [len(one) for one in several] for name, several in found.items()}
    assert lengths == {"line-1": [6, 6], "own": [2, 2], "line-3": [6, 6]}


def test_chats_go_through_the_template_and_to_the_models_limit(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}]
    body = {"model": "served", "messages": messages, "logprobs": False, "user": "me"}
    line = {"custom_id": "c", "method": "POST", "url": "/v1/chat/completions", "body": body}
    source = write_lines(tmp_path / "in.jsonl", [json.dumps(line).encode()])
    run_job(source, tmp_path / "out.jsonl", served_model_name=("served",), include=("token_ids",))
    body = read_output(tmp_path / "out.jsonl")["c"]["response"]["body"]
    assert bytes(body["prompt_token_ids"]) == b"user: hi\n"
    assert body["choices"][0]["message"]["role"] == "assistant"
    assert body["usage"]["total_tokens"] == 64 and body["choices"][0]["finish_reason"] == "length"


def test_the_summary_tells_what_happened(source: Path, tmp_path: Path) -> None:
    run_job(source, tmp_path / "out.jsonl")
    facts = json.loads((tmp_path / "out.jsonl.summary.json").read_text())
    assert (facts["done"], facts["failed"], facts["exit_code"]) == (30, 0, 0)
    assert facts["run"]["completion_tokens"] == 120
    assert facts["run"]["ttft_s"]["count"] == 30 and "p99" in facts["run"]["tpot_s"]
    assert facts["engine"]["compile_seconds"] == 1.5


def test_prometheus_sees_a_job_while_it_runs(source: Path, tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client", reason="the metrics extra is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    llm, seen = FakeLLM(), list[str]()

    def look() -> None:
        if llm.engine.num_steps == 3:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                seen.append(answer.read().decode())

    llm.engine.before_step = look
    assert run_job(source, tmp_path / "out.jsonl", llm, metrics_port=port).done == 30
    assert "jaxinfer:batch_lines 30.0" in seen[0].splitlines()
    assert "jaxinfer:generation_tokens_total" in seen[0]


def test_the_engine_is_read_ahead_no_further_than_it_needs(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [good_line(f"r{n}") for n in range(200)])
    llm = FakeLLM(num_slots=4)
    run_job(source, tmp_path / "out.jsonl", llm)
    assert llm.engine.most_open == 8


def test_compressed_input_and_a_folder_of_shards(tmp_path: Path, source: Path) -> None:
    run_job(source, tmp_path / "wanted.jsonl")
    folder = tmp_path / "in"
    folder.mkdir()
    write_lines(folder / "1.jsonl", LINES[:9])
    (folder / "2.jsonl.gz").write_bytes(gzip.compress(b"\n".join(LINES[9:])))
    run_job(folder, tmp_path / "out.jsonl")
    assert texts(tmp_path / "out.jsonl") == texts(tmp_path / "wanted.jsonl")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"options": {"max_num_waiting": 5}}, "max_num_waiting"),
        ({"shard": (4, 4)}, "shard=4/4"),
        ({"include": ("tokens",)}, "include='tokens'"),
        ({"progress": "dots"}, "progress='dots'"),
        ({"params": {"temperature": 9}}, "temperature"),
        ({"params": {"temprature": 1}}, "temperature"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_wrong_settings_are_refused(
    source: Path, tmp_path: Path, settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        run_job(source, tmp_path / "out.jsonl", **settings)


def test_input_and_output_must_not_be_one(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is the input"):
        run_job(source, source)
    with pytest.raises(ConfigError, match="among the input"):
        run_job(tmp_path, tmp_path / "out.jsonl")
    with pytest.raises(ConfigError, match="no folder"):
        run_job(source, tmp_path / "none" / "out.jsonl")
    assert source.read_bytes().count(b"\n") == 30
