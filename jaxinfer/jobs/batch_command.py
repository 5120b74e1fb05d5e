"""JOINT. `jaxinfer batch`: runs a batch job and says what became of it.

Knows how a summary is shown; the job itself is `batch`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from jaxinfer.errors import ConfigError
from jaxinfer.jobs.batch import run_batch
from jaxinfer.jobs.batch_progress import write_event
from jaxinfer.jobs.batch_settings import EXIT_INTERRUPTED, BatchSummary, parse_shard
from jaxinfer.jobs.ray_job import ray_batch


def run_and_report(
    source: str,
    output: Path,
    model: str,
    *,
    ray: Mapping[str, Any],
    progress: str = "bar",
    **options: Any,
) -> int:
    """Runs the job and prints its summary, as a table or (with `progress="json"`) as JSON.

    Args:
        ray: "ray" is true for a job on a Ray cluster; further arguments of `ray_batch`.
        options: further arguments of `run_batch` or `ray_batch`; shard is "i/n".

    Returns:
        The exit code.

    Raises:
        JaxInferError: the job cannot begin or go on.
    """
    if "shard" in options:
        options["shard"] = parse_shard(options["shard"])
    try:
        if on_ray(ray):
            cluster = {name: value for name, value in ray.items() if name != "ray"}
            summary = ray_batch(source, output, model, progress=progress, **cluster, **options)
        else:
            options["engine"] = {**options["engine"], "show_progress": progress == "bar"}
            summary = run_batch(source, output, model, progress=progress, **options)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    if progress == "json":
        write_event("summary", summary.as_json())
    elif progress == "bar":
        print_summary(summary, Console(highlight=False))
    return summary.exit_code


def on_ray(ray: Mapping[str, Any]) -> bool:
    """Whether the job is for a Ray cluster.

    Raises:
        ConfigError: an option of a cluster without --ray.
    """
    if ray.get("ray"):
        return True
    for name, value in ray.items():
        if name != "ray":
            raise ConfigError(
                f"{name}={value!r} is of a job on a Ray cluster; add --ray, or leave it out"
            )
    return False


def print_summary(summary: BatchSummary, console: Console) -> None:
    """Prints a table of what became of the lines and how fast."""
    table = Table(title=str(summary.output), title_justify="left", show_header=False)
    table.add_column(style="dim")
    table.add_column(justify="right")
    left = summary.total - summary.done - summary.failed
    for name, count in (("done", summary.done), ("failed", summary.failed), ("left", left)):
        table.add_row(f"lines {name}", f"{count:,}")
    if summary.engine:
        for name, value in _figures(summary):
            table.add_row(name, value)
    console.print(table)


def _figures(summary: BatchSummary) -> list[tuple[str, str]]:
    run, engine = summary.run, summary.engine
    queries = engine.get("prefix_cache_queries", 0)
    figures = [
        ("seconds", f"{run['seconds']:.1f}"),
        ("tokens in", f"{run['prompt_tokens']:,}"),
        ("tokens out", f"{run['completion_tokens']:,}"),
        ("tokens/s out", _number(run["completion_tokens_per_s"])),
        ("seconds per 1000 tokens", _number(run["seconds_per_1000_tokens"])),
        (
            "from the prefix cache",
            f"{engine['prefix_cache_hits'] / queries:.1%}" if queries else "–",
        ),
        ("compile seconds", _number(engine.get("compile_seconds"))),
    ]
    for name in ("ttft_s", "tpot_s"):
        found = run[name]
        shown = f"{found['p50']:.3f} / {found['p99']:.3f}" if found else "–"
        figures.append((f"{name.removesuffix('_s').upper()} s, p50 / p99", shown))
    return figures


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
