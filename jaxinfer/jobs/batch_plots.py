"""HOST. Pictures of a batch job's output: latencies and lengths, through matplotlib (extra `plot`).

Knows results as records; asks for matplotlib only when a picture is wanted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxinfer.jobs.batch_results import BatchResult, read_results
from jaxinfer.jobs.pictures import import_pyplot

_BINS = 30
_LATENCIES = (
    ("time_to_first_token_s", "time to first token, s"),
    ("time_per_output_token_s", "time per output token, s"),
    ("e2e_latency_s", "end to end, s"),
)
_LENGTHS = (
    ("prompt_tokens", "prompt, tokens"),
    ("completion_tokens", "completions, tokens"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figures:
    """What a picture needs of a result, whose texts are not kept."""

    latencies: Mapping[str, Any]
    prompt_tokens: int
    completion_tokens: int

    @classmethod
    def of(cls, result: BatchResult) -> "_Figures":
        return cls(
            latencies={name: result.metrics.get(name) for name, _ in _LATENCIES},
            prompt_tokens=result.prompt_tokens,
            completion_tokens=result.completion_tokens,
        )


def plot_results(output: str | Path) -> Any:
    """A matplotlib figure: how latencies and lengths of a job's requests are distributed.

    Args:
        output: of `run_batch`, or the folder of `ray_batch`. Latencies are in it where the job was
            run with `include=["metrics"]`; without, their panels say so.

    Raises:
        ConfigError: matplotlib is not installed, or no such output.
    """
    pyplot = import_pyplot()
    served = [_Figures.of(one) for one in read_results(output) if one.error is None]
    figure, axes = pyplot.subplots(2, 3, figsize=(12, 6), layout="constrained")
    pyplot.close(figure)  # a notebook shows what a cell returns, and would show it twice
    for axis, (name, label) in zip(axes[0], _LATENCIES, strict=True):
        values = [one.latencies[name] for one in served if one.latencies[name] is not None]
        _draw_histogram(axis, values, label, 'no such times: run with include=["metrics"]')
    for axis, (name, label) in zip(axes[1], _LENGTHS, strict=False):
        _draw_histogram(axis, [getattr(one, name) for one in served], label, "no results")
    _draw_latency_by_length(axes[1][2], served)
    return figure


def _draw_histogram(axis: Any, values: Sequence[float], label: str, missing: str) -> None:
    axis.set_xlabel(label)
    axis.set_ylabel("requests")
    if not values:
        axis.text(0.5, 0.5, missing, ha="center", va="center", transform=axis.transAxes, wrap=True)
        return
    axis.hist(values, bins=_BINS)
    middle = sorted(values)[len(values) // 2]
    axis.axvline(middle, linestyle="--", color="black", label=f"median {middle:.3g}")
    axis.legend()


def _draw_latency_by_length(axis: Any, served: Sequence[_Figures]) -> None:
    timed = [one for one in served if one.latencies["e2e_latency_s"] is not None]
    axis.set_xlabel("completions, tokens")
    axis.set_ylabel("end to end, s")
    lengths = [one.completion_tokens for one in timed]
    axis.scatter(lengths, [one.latencies["e2e_latency_s"] for one in timed], s=8)
