"""HOST. Results of a batch job read back: one record for each line of an output.

Knows the output's form; neither engines nor what becomes of the records.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxinfer.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """One line of an output.

    custom_id: None for a line so broken that it had none. texts, finish_reasons: one a completion.
    prompt_tokens, completion_tokens: all completions together. metrics: fields of `RequestMetrics`
    where the job was run with `include=["metrics"]`. error: the message in place of all that.
    """

    custom_id: str | None
    texts: tuple[str, ...] = ()
    finish_reasons: tuple[str, ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0
    metrics: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


def read_results(output: str | Path) -> Iterator[BatchResult]:
    """The results of a batch job, one line in memory at a time.

    Args:
        output: of `run_batch`, or the folder of `ray_batch`. A job may still be writing it: what
            stands behind the last line feed is left out.

    Raises:
        ConfigError: nothing there, or a line that no batch job wrote.
    """
    path = Path(output)
    files = sorted(path.glob("part-*.jsonl")) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise ConfigError(f"output={str(output)!r} was not found, or is a folder without parts")
    for file in files:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.endswith(b"\n"):
                    yield _result(line, f"{file}:{number}")


def _result(line: bytes, place: str) -> BatchResult:
    try:
        row = json.loads(line)
        if row["error"] is not None:
            return BatchResult(custom_id=row["custom_id"], error=row["error"]["message"])
        body = row["response"]["body"]
        return BatchResult(
            custom_id=row["custom_id"],
            texts=tuple(_text(one) for one in body["choices"]),
            finish_reasons=tuple(one["finish_reason"] for one in body["choices"]),
            prompt_tokens=body["usage"]["prompt_tokens"],
            completion_tokens=body["usage"]["completion_tokens"],
            metrics=body.get("metrics", {}),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{place} is no result of a batch job ({error!r})") from error


def _text(choice: Mapping[str, Any]) -> str:
    return choice["text"] if "text" in choice else choice["message"]["content"]
