"""Batch jobs for tests: a fake LLM in the place of the real one, and files read and written."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxinfer.jobs.batch import BatchJob
from jaxinfer.jobs.batch_settings import BatchSettings, BatchSummary
from tests.support.fake_engine import FakeLLM

# What is wrong, the line, and what the error line must name. `{id}` becomes the line's own id.
BAD_LINES: Sequence[tuple[str, bytes, str]] = (
    ("an array", b"[1,2]", "not an object"),
    ("a text", b'"x"', "not an object"),
    ("null", b"null", "not an object"),
    ("cut JSON", b'{"custom_id":"{id}","prompt":"a', "no JSON"),
    ("broken UTF-8", b'{"custom_id":"{id}","prompt":"\xff"}', "UTF-8"),
    ("NaN", b'{"custom_id":"{id}","prompt":"a","temperature":NaN}', "NaN"),
    ("half a surrogate", b'{"custom_id":"{id}","prompt":"\\ud800"}', "surrogate"),
    ("deep nesting", b'{"custom_id":"{id}","prompt":' + b"[" * 5000, "no JSON"),
    ("too long", b'{"custom_id":"{id}","prompt":"' + b"x" * 9000 + b'"}', "max_line_bytes"),
    (
        "no body",
        b'{"custom_id":"{id}","method":"POST","url":"/v1/completions"}',
        "body",
    ),
    (
        "a body of text",
        b'{"custom_id":"{id}","method":"POST","url":"/v1/completions","body":"x"}',
        "body",
    ),
    (
        "an unknown url",
        b'{"custom_id":"{id}","method":"POST","url":"/v1/unknown","body":{"prompt":"a"}}',
        "url",
    ),
    (
        "another method",
        b'{"custom_id":"{id}","method":"GET","url":"/v1/completions","body":{"prompt":"a"}}',
        "method",
    ),
    ("an unknown field", b'{"custom_id":"{id}","prompt":"a","temprature":1}', "temperature"),
    ("streaming", b'{"custom_id":"{id}","prompt":"a","stream":true}', "stream"),
    ("another model", b'{"custom_id":"{id}","prompt":"a","model":"other"}', "model"),
    ("a number as prompt", b'{"custom_id":"{id}","prompt":5}', "prompt"),
    ("null as prompt", b'{"custom_id":"{id}","prompt":null}', "prompt"),
    ("ids and text mixed", b'{"custom_id":"{id}","prompt":[1,"a"]}', "prompt"),
    ("several prompts", b'{"custom_id":"{id}","prompt":[[1,2],[3]]}', "prompt"),
    ("an object as prompt", b'{"custom_id":"{id}","prompt":{"x":1}}', "prompt"),
    ("no prompt", b'{"custom_id":"{id}","max_tokens":3}', "prompt"),
    ("no messages", b'{"custom_id":"{id}","messages":[]}', "messages"),
    ("a message of text", b'{"custom_id":"{id}","messages":["hi"]}', "messages[0]"),
    ("n of 0", b'{"custom_id":"{id}","prompt":"a","n":0}', "n=0"),
    ("n of a hundred million", b'{"custom_id":"{id}","prompt":"a","n":100000000}', "at most 65536"),
    (
        "a number beyond floats",
        b'{"custom_id":"{id}","prompt":"a","temperature":1' + b"0" * 400 + b"}",
        "temperature",
    ),
    (
        "a penalty beyond floats",
        b'{"custom_id":"{id}","prompt":"a","repetition_penalty":1' + b"0" * 400 + b"}",
        "repetition_penalty",
    ),
    ("max_tokens of 0", b'{"custom_id":"{id}","prompt":"a","max_tokens":0}', "max_tokens"),
    ("a negative temperature", b'{"custom_id":"{id}","prompt":"a","temperature":-1}', "temper"),
    ("a prompt too long", b'{"custom_id":"{id}","prompt":"' + b"y" * 200 + b'"}', "200"),
    ("an id of no token", b'{"custom_id":"{id}","prompt":[1,99999]}', "99999"),
    ("structured output", b'{"custom_id":"{id}","prompt":"a","guided_json":{}}', "guided_json"),
    ("two prompts", b'{"custom_id":"{id}","prompt":"a","prompt_token_ids":[1]}', "prompt"),
    ("NaN in the logits", b'{"custom_id":"{id}","prompt":[65,1]}', "NaN"),
    ("top_logprobs alone", b'{"custom_id":"{id}","messages":[{}],"top_logprobs":2}', "logprobs"),
)


def bad_line(place: int) -> bytes:
    """The line of `BAD_LINES[place]` with its own id, "bad<place>"."""
    return BAD_LINES[place][1].replace(b"{id}", b"bad%d" % place)


def good_line(name: str, **fields: Any) -> bytes:
    """A plain line of four tokens."""
    return json.dumps(
        {"custom_id": name, "prompt": f"p {name}", "max_tokens": 4, **fields}
    ).encode()


def write_lines(path: Path, lines: Sequence[bytes]) -> Path:
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def read_output(path: Path) -> dict[Any, dict[str, Any]]:
    """Output lines by custom_id, in the file's order; every id must be there once."""
    data = path.read_bytes()
    assert not data or data.endswith(b"\n")
    rows = [json.loads(line) for line in data.split(b"\n")[:-1]]
    named = {row["custom_id"]: row for row in rows if row["custom_id"] is not None}
    assert len(named) + sum(row["custom_id"] is None for row in rows) == len(rows)
    assert all((row["response"] is None) != (row["error"] is None) for row in rows)
    return named


def texts(path: Path) -> dict[Any, list[str] | str]:
    """Texts of every choice by custom_id; of a failed line its error's code."""
    return {name: _texts(row) for name, row in read_output(path).items()}


def _texts(row: dict[str, Any]) -> list[str] | str:
    if row["error"] is not None:
        return row["error"]["code"]
    return [one["text"] if "text" in one else one["message"]["content"] for one in _choices(row)]


def _choices(row: dict[str, Any]) -> list[dict[str, Any]]:
    return row["response"]["body"]["choices"]


def make_job(
    source: Path,
    output: Path,
    llm: FakeLLM | None = None,
    *,
    options: dict[str, Any] | None = None,
    model_digest: str = "digest",
    **settings: Any,
) -> BatchJob:
    ask = BatchSettings(source=str(source), output=output, model="fake", **settings)
    fake = llm or FakeLLM()
    return BatchJob(ask, options or {}, lambda: fake, lambda: model_digest)  # type: ignore[arg-type]


def run_job(source: Path, output: Path, llm: FakeLLM | None = None, **more: Any) -> BatchSummary:
    return make_job(source, output, llm, **more).run()
