"""Batch jobs with a real engine: killed, interrupted, compared with `generate`, read by clients."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from jaxinfer import LLM, SamplingParams
from jaxinfer.jobs import run_batch
from jaxinfer.jobs.batch_ledger import split_output_id
from tests.end_to_end.engines import SMALL
from tests.jobs.batch_jobs import BAD_LINES, bad_line, good_line, texts, write_lines
from tests.repository.tree import ROOT
from tests.support.byte_tokenizer import save_byte_tokenizer
from tests.support.tiny_models import write_tiny

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tiny(tmp_path_factory.mktemp("tiny"), eos_token_id=256)
    save_byte_tokenizer(folder, chat_template=TEMPLATE)
    return folder


@pytest.fixture
def engine(programs: Path) -> dict[str, Any]:
    """Settings of a small engine, with the session's programs."""
    kept = {"compilation_cache_dir": str(programs), "show_progress": False}
    return {**SMALL, **kept, "max_num_batched_tokens": 16}


def write_job(path: Path, count: int, *, most_tokens: int = 24) -> Path:
    """Lines of different lengths, sampled, some with several completions, some in error."""
    line: dict[str, Any]
    draw = random.Random(count)
    with path.open("w") as file:
        for number in range(count):
            prompt = "abcdefgh"[: draw.randint(1, 8)] * draw.randint(1, 6)
            line = {"custom_id": f"r{number}", "prompt": prompt, "ignore_eos": True}
            line |= {
                "max_tokens": draw.randint(2, most_tokens),
                "temperature": draw.choice([0, 0.8, 1.5]),
            }
            if number % 10 == 3:
                line |= {"n": 2, "temperature": 1.0}
            if number % 50 == 7:
                line["prompt"] = "x" * 400
            file.write(json.dumps(line) + "\n")
    return path


def output_texts(path: Path) -> dict[str, Any]:
    """What must not depend on how often the job died: texts, ids and errors by custom_id."""
    found: dict[str, Any] = {}
    for line in path.read_bytes().splitlines():
        row = json.loads(line)
        assert row["custom_id"] not in found, "an id that is there twice"
        body = (row["response"] or {}).get("body")
        found[row["custom_id"]] = (
            [(one["text"], one["token_ids"], one["finish_reason"]) for one in body["choices"]]
            if body
            else row["error"]
        )
    return found


def command(source: Path, output: Path, model: Path, engine: dict[str, Any]) -> list[str]:
    options = {"--" + k.replace("_", "-"): v for k, v in engine.items() if k != "show_progress"}
    arguments = ["-m", "jaxinfer.jobs.cli", "batch", source, "-o", output, "--model", model]
    arguments += ["--include", "token_ids", "--progress", "json"]
    arguments += [part for pair in options.items() for part in pair]
    return [sys.executable, *map(str, arguments)]


def start(arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def wait_for_lines(process: subprocess.Popen[str], output: Path, count: int) -> bool:
    """Waits until the output has `count` lines; False if the process ended before."""
    while process.poll() is None:
        if output.exists() and output.read_bytes().count(b"\n") >= count:
            return True
        time.sleep(0.005)
    return False


def kill_and_resume(
    output: Path, arguments: list[str], kills: int, total: int, draw: random.Random
) -> int:
    """Kills the job at random moments and starts it again; how many kills came before its end."""
    came = 0
    for left_kills in range(kills, 0, -1):
        process = start(arguments)
        held = output.read_bytes().count(b"\n") if output.exists() else 0
        # After some progress, or none, so that the kills spread over the whole job.
        wait_for_lines(process, output, held + draw.randint(0, 2 * (total - held) // left_kills))
        time.sleep(draw.uniform(0, 0.1))
        came += int(process.poll() is None)
        process.kill()
        process.communicate()
        if output.exists():
            whole = output.read_bytes().rpartition(b"\n")[0]
            identities = [split_output_id(json.loads(one)["id"]) for one in whole.splitlines()]
            assert None not in identities and len(set(identities)) == len(identities)
    return came


def check_kills(
    tmp_path: Path, model: Path, engine: dict[str, Any], *, lines: int, kills: int, tokens: int
) -> None:
    source = write_job(tmp_path / "in.jsonl", lines, most_tokens=tokens)
    run_batch(source, tmp_path / "wanted.jsonl", model, engine=engine, include=["token_ids"])
    output, draw = tmp_path / "out.jsonl", random.Random(kills)
    arguments = command(source, output, model, engine)
    came = kill_and_resume(output, arguments, kills, lines, draw)
    last = subprocess.run(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert last.returncode == 2, last.stdout  # the lines that are too long
    assert came >= kills * 2 // 3, f"only {came} of {kills} kills came before the job's end"
    found = output_texts(output)
    assert set(found) == {f"r{number}" for number in range(lines)}
    assert found == output_texts(tmp_path / "wanted.jsonl")


def test_a_job_killed_three_times_has_every_line_once(
    tmp_path: Path, model: Path, engine: dict[str, Any]
) -> None:
    """Promise 9."""
    check_kills(tmp_path, model, engine, lines=120, kills=3, tokens=60)


@pytest.mark.slow
def test_a_job_killed_twenty_times_has_every_line_once(
    tmp_path: Path, model: Path, engine: dict[str, Any]
) -> None:
    """Promise 9."""
    check_kills(tmp_path, model, engine, lines=300, kills=20, tokens=150)


@pytest.mark.slow
def test_every_kind_of_bad_line_with_a_real_engine(
    tmp_path: Path, model: Path, engine: dict[str, Any]
) -> None:
    """BB-30, BB-48, BB-50: the lines that a fake engine is tested with, all but its own NaN."""
    places = [place for place, (what, *_) in enumerate(BAD_LINES) if what != "NaN in the logits"]
    lines = [one for place in places for one in (good_line(f"good{place}"), bad_line(place))]
    source = write_lines(tmp_path / "in.jsonl", lines)
    alone = write_lines(tmp_path / "good.jsonl", lines[::2])
    options: dict[str, Any] = {"engine": {**engine, "max_model_len": 64}, "max_line_bytes": 8000}
    summary = run_batch(source, tmp_path / "out.jsonl", model, **options)
    assert len(places) >= 25
    assert (summary.done, summary.failed, summary.exit_code) == (len(places), len(places), 2)
    run_batch(alone, tmp_path / "alone.jsonl", model, **options)
    found = texts(tmp_path / "out.jsonl")
    good = {name: text for name, text in found.items() if name.startswith("good")}
    assert good == texts(tmp_path / "alone.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_bytes().splitlines()]
    errors = {row["error"]["line"]: row["error"]["message"] for row in rows if row["error"]}
    for number, place in enumerate(places):
        what, _, named = BAD_LINES[place]
        assert named in errors[f"in.jsonl:{2 * number + 2}"], what


def test_ctrl_c_finishes_what_runs_and_the_job_goes_on(
    tmp_path: Path, model: Path, engine: dict[str, Any]
) -> None:
    source = write_job(tmp_path / "in.jsonl", 150)
    run_batch(source, tmp_path / "wanted.jsonl", model, engine=engine, include=["token_ids"])
    output = tmp_path / "out.jsonl"
    arguments = command(source, output, model, engine)
    process = start(arguments)
    assert wait_for_lines(process, output, 1)
    process.send_signal(signal.SIGINT)
    shown, _ = process.communicate()
    summary = json.loads(shown.splitlines()[-1])
    assert process.returncode == 130 and summary["event"] == "summary"
    assert summary["interrupted"] and summary["done"] + summary["failed"] < 150
    assert len(output_texts(output)) == summary["done"] + summary["failed"]
    done = subprocess.run(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert output_texts(output) == output_texts(tmp_path / "wanted.jsonl")


def test_a_job_gives_what_generate_gives(
    tmp_path: Path, model: Path, engine: dict[str, Any]
) -> None:
    prompts = ["abc", "abcd", "xyz", "abcde"]
    lines = [{"prompt": prompt, "seed": number} for number, prompt in enumerate(prompts)]
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run_batch(source, tmp_path / "out.jsonl", model, engine=engine, include=["token_ids"])
    params = [SamplingParams(seed=number) for number in range(len(prompts))]
    with LLM(model, **engine) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
    found = output_texts(tmp_path / "out.jsonl")
    for number, output in enumerate(outputs, 1):
        (one,) = output.outputs
        assert found[f"line-{number}"] == [(one.text, one.token_ids, one.finish_reason)]


def test_clients_read_the_bodies(tmp_path: Path, model: Path, engine: dict[str, Any]) -> None:
    """OpenAI's own types, with every optional part that a line can ask for."""
    chat = pytest.importorskip("openai.types.chat", reason="the openai package is not installed")
    from openai.types import Completion

    messages = [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]
    bodies = {
        "chat": {"messages": messages, "max_completion_tokens": 5, "logprobs": True},
        "best": {"messages": messages, "max_tokens": 5, "logprobs": True, "top_logprobs": 3},
        "plain": {"messages": messages, "max_tokens": 5, "n": 2},
        "text": {"prompt": "abc", "max_tokens": 5, "logprobs": 2, "n": 2},
        "ids": {"prompt": [97, 98], "max_tokens": 5},
    }
    lines = [
        {
            "custom_id": name,
            "method": "POST",
            "url": "/v1/completions" if "prompt" in body else "/v1/chat/completions",
            "body": {"model": "served", "ignore_eos": True, **body},
        }
        for name, body in bodies.items()
    ]
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    include = ["token_ids", "seed", "fingerprint"]
    summary = run_batch(
        source, output, model, engine=engine, include=include, served_model_name="served"
    )
    assert (summary.done, summary.exit_code) == (5, 0)
    for line in output.read_bytes().splitlines():
        row = json.loads(line)
        name, body = row["custom_id"], row["response"]["body"]
        kind = Completion if name in ("text", "ids") else chat.ChatCompletion
        parsed = kind.model_validate(body, strict=True)
        assert len(parsed.choices) == bodies[name].get("n", 1)
        assert parsed.usage.completion_tokens == 5 * len(parsed.choices)
        assert parsed.choices[0].finish_reason == "length" and parsed.system_fingerprint
        check_logprobs(name, parsed.choices[0])


def check_logprobs(name: str, choice: Any) -> None:
    if name in ("chat", "best"):
        content = choice.logprobs.content
        assert len(content) == 5
        assert {len(one.top_logprobs) for one in content} == {3 if name == "best" else 0}
        assert b"".join(bytes(one.bytes) for one in content).decode(errors="replace")
    elif name == "text":
        assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs) == 5
        assert {len(one) for one in choice.logprobs.top_logprobs} <= {1, 2}
    else:
        assert choice.logprobs is None
