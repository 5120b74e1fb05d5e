"""HOST. How far a batch job is: a bar for people, JSON lines for machines.

Knows counts and the engine's metrics by name; where they go is the caller's.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import IO, Any, Literal

from tqdm import tqdm

ProgressForm = Literal["bar", "json", "none"]
PROGRESS_FORMS: tuple[ProgressForm, ...] = ("bar", "json", "none")
INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """done, failed, total: lines, those of earlier runs too. Rates are of this run.

    kv_cache_usage: share of pages in use. prefix_hit_rate: share of the prompts' tokens that the
    prefix cache held. acceptance_rate: of drafted tokens; None without speculation. eta_s: None
    until the first line of this run is done.
    """

    done: int
    failed: int
    total: int
    elapsed_s: float
    prompt_tokens_per_s: float
    completion_tokens_per_s: float
    kv_cache_usage: float
    prefix_hit_rate: float | None
    acceptance_rate: float | None
    eta_s: float | None


def measure_progress(
    *,
    done: int,
    failed: int,
    total: int,
    num_before: int,
    elapsed_s: float,
    prompt_tokens: int,
    completion_tokens: int,
    metrics: Mapping[str, float],
) -> Progress:
    """The state of a job.

    Args:
        num_before: of the lines that are done or failed, those of earlier runs.
        metrics: the engine's, by name.
    """
    came, left = done + failed - num_before, total - done - failed
    rate = 1 / elapsed_s if elapsed_s > 0 else 0.0
    return Progress(
        done=done,
        failed=failed,
        total=total,
        elapsed_s=round(elapsed_s, 3),
        prompt_tokens_per_s=round(prompt_tokens * rate, 1),
        completion_tokens_per_s=round(completion_tokens * rate, 1),
        kv_cache_usage=round(metrics.get("kv_cache_usage_perc", 0.0), 4),
        prefix_hit_rate=_share(metrics, "prefix_cache_hits", "prefix_cache_queries"),
        acceptance_rate=_share(
            metrics, "spec_decode_num_accepted_tokens", "spec_decode_num_draft_tokens"
        ),
        eta_s=round(elapsed_s / came * left, 1) if came else None,
    )


def _share(metrics: Mapping[str, float], part: str, whole: str) -> float | None:
    return round(metrics.get(part, 0.0) / metrics[whole], 4) if metrics.get(whole) else None


class ProgressReporter:
    """Shows progress, at most once an interval.

    Args:
        form: "bar" on standard error, "json" as lines on standard output, or "none".
        measure: the state of the job, asked only when it is shown.
        stream: in place of the form's own.
    """

    def __init__(
        self, form: ProgressForm, measure: Callable[[], Progress], stream: IO[str] | None = None
    ) -> None:
        self._form = form
        self._measure = measure
        self._stream = stream
        self._shown_s = time.monotonic()
        self._bar: tqdm | None = None

    def tick(self) -> None:
        """Shows the state if an interval has passed."""
        now = time.monotonic()
        if self._form != "none" and now - self._shown_s >= INTERVAL_S:
            self._shown_s = now
            self._show(self._measure())

    def close(self) -> None:
        """Shows the last state; the bar stands where it ended."""
        if self._form != "none":
            self._show(self._measure())
        if self._bar is not None:
            self._bar.close()

    def _show(self, progress: Progress) -> None:
        if self._form == "json":
            write_event("progress", asdict(progress), self._stream)
            return
        if self._bar is None:
            ended = progress.done + progress.failed
            self._bar = tqdm(
                total=progress.total, initial=ended, desc="lines", file=self._stream or sys.stderr
            )
        self._bar.n = progress.done + progress.failed
        self._bar.set_postfix_str(_postfix(progress), refresh=True)


def write_event(event: str, values: Mapping[str, Any], stream: IO[str] | None = None) -> None:
    """One JSON line of what happened."""
    out: IO[str] = stream or sys.stdout
    out.write(json.dumps({"event": event, **values}) + "\n")
    out.flush()


def _postfix(progress: Progress) -> str:
    parts = [
        f"{progress.failed} failed",
        f"{progress.completion_tokens_per_s:.0f} tok/s out",
        f"{progress.prompt_tokens_per_s:.0f} in",
        f"KV {progress.kv_cache_usage:.0%}",
    ]
    if progress.prefix_hit_rate is not None:
        parts.append(f"prefix {progress.prefix_hit_rate:.0%}")
    if progress.acceptance_rate is not None:
        parts.append(f"accepted {progress.acceptance_rate:.0%}")
    return ", ".join(parts)
