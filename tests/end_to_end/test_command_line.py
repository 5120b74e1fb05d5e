"""The commands with a real engine behind them (tests/jobs has their options, with a fake one)."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from jaxinfer.jobs.cli import app
from tests.support.byte_tokenizer import save_byte_tokenizer
from tests.support.tiny_models import write_tiny

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tiny(tmp_path_factory.mktemp("tiny"), eos_token_id=256)
    save_byte_tokenizer(folder, chat_template=TEMPLATE)
    return folder


@pytest.fixture
def engine_options(programs: Path) -> list[str]:
    """Those of the small engine, with the session's programs."""
    small = {"--dtype": "float32", "--max-num-seqs": "2", "--prefill-chunk-tokens": "16"}
    small |= {"--block-size": "16", "--compilation-cache-dir": str(programs)}
    small |= {"--max-num-batched-tokens": "16"}
    return [part for pair in small.items() for part in pair]


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_generate(model: Path, engine_options: list[str]) -> None:
    prompts = ["--prompt", "abc", "--prompt", "x" * 300, "--prompt", "de"]
    sampling = ["--temperature", 0, "--max-tokens", 4, "--logprobs", 1, "--json"]
    done = invoke("generate", model, *engine_options, *prompts, *sampling)
    assert done.exit_code == 2, done.output  # one row has an error
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["prompt"] for row in rows] == ["abc", "x" * 300, "de"]
    assert [row["error"] is None for row in rows] == [True, False, True]
    assert "256" in rows[1]["error"]
    assert 1 <= len(rows[0]["outputs"][0]["token_ids"]) <= 4
    assert len(rows[0]["outputs"][0]["logprobs"]) == len(rows[0]["outputs"][0]["token_ids"])


def test_chat(model: Path, engine_options: list[str]) -> None:
    done = invoke("chat", model, *engine_options, "--message", "hi", "--max-tokens", 3)
    assert done.exit_code == 0, done.output


def test_bench(model: Path, engine_options: list[str]) -> None:
    shape = ["--num-prompts", 3, "--input-len", 20, "--output-len", 4, "--rounds", 1]
    done = invoke("bench", model, *engine_options, *shape, "--workload", "shared-prefix", "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["throughput"]["completion_tokens"] == 12
    assert result["throughput"]["cached_tokens"] >= 16  # a page of the prefix, at least once
    assert result["latency"]["tpot_s"]["count"] == 3


def test_a_bad_model_is_one_message(tmp_path: Path, engine_options: list[str]) -> None:
    done = invoke("generate", tmp_path / "none", *engine_options, "--prompt", "a")
    assert done.exit_code == 1
    assert "was not found" in done.stderr
    assert "Traceback" not in done.output
