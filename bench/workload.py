"""Workloads of the benchmarks: one JSON line a request in `bench/data`.

Needs no jaxinfer, so that the peers' environments can read it too.
"""

import json
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRow:
    """One request: answer `prompt` with exactly `max_tokens` tokens."""

    custom_id: str
    prompt: str
    max_tokens: int


def load_workload(name: str) -> list[WorkloadRow]:
    """The rows of `bench/data/<name>.jsonl` in order.

    Raises:
        FileNotFoundError: no such workload; the message names those that there are.
    """
    path = DATA / f"{name}.jsonl"
    if not path.is_file():
        known = ", ".join(sorted(one.stem for one in DATA.glob("*.jsonl")))
        raise FileNotFoundError(f"no workload {name!r} in {DATA.name}/; there are: {known}")
    with path.open(encoding="utf-8") as lines:
        return [WorkloadRow(**json.loads(line)) for line in lines]
