"""The JSON line that every benchmark prints, the peers' included; needs no jaxinfer."""

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """What one engine did on one workload.

    tokens: useful output tokens; seconds: wall time of the last run, loading left out;
    startup_s: loading and compiling; extra: further figures of this engine.
    """

    engine: str
    workload: str
    tokens: int
    seconds: float
    startup_s: float
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


def throughput_line(result: Throughput) -> str:
    """One JSON line; the keys that all engines share come first."""
    return json.dumps(
        {
            "engine": result.engine,
            "workload": result.workload,
            "tokens_per_s": round(result.tokens_per_s, 1),
            "seconds": round(result.seconds, 2),
            "startup_s": round(result.startup_s, 1),
            "tokens": result.tokens,
            **result.extra,
        }
    )


def read_throughput(output: str) -> dict[str, Any]:
    """The JSON line in a program's standard output.

    Raises:
        ValueError: there is none.
    """
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    raise ValueError(f"no JSON line in the output: {output[-500:]!r}")
