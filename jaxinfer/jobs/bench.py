"""JOINT. `jaxinfer bench`: throughput of all requests together, latency of one at a time.

Knows the engine's `add` and `step`; the requests are `bench_workload`'s.
"""

import json
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from itertools import count, takewhile
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from jaxinfer.errors import RequestError
from jaxinfer.jobs.batch_lines import PromptMaker, failure
from jaxinfer.jobs.batch_statistics import Statistics
from jaxinfer.jobs.bench_workload import BenchRequest, WorkloadShape, make_workload

if TYPE_CHECKING:
    from jaxinfer.engine.outputs import RequestOutput
    from jaxinfer.engine.task import Task
    from jaxinfer.llm import LLM

_MAX_LATENCY_REQUESTS = 8
_DRAFT_ROWS = (
    ("drafted tokens", "num_draft_tokens", 0),
    ("acceptance rate", "acceptance_rate", 3),
    ("mean acceptance length", "mean_acceptance_length", 2),
    ("drafting s", "draft_seconds", 2),
    ("verifying s", "verify_seconds", 2),
    ("estimated gain", "estimated_gain", 2),
)


def run_bench(
    llm: "LLM",
    workload: str,
    shape: WorkloadShape | None = None,
    *,
    concurrency: int | None = None,
    rounds: int = 1,
) -> dict[str, Any]:
    """Measures a workload.

    Args:
        workload: "random", "shared-prefix", "mixed48" or a file of a batch job's lines.
        shape: of made-up workloads.
        concurrency: requests at once; None is all of them.
        rounds: the fastest counts; a warm-up round comes before them.

    Returns:
        JSON values: "throughput" of all requests, "latency" of a few of them one at a time, each
        with totals, rates and percentiles.

    Raises:
        ConfigError: no such workload. RequestError: a request that cannot be served.
    """
    params = llm.get_default_sampling_params()
    base = {one.name: getattr(params, one.name) for one in fields(params) if one.init}
    requests = make_workload(
        workload, shape or WorkloadShape(), vocab_size=llm.engine.intake.vocab_size, base=base
    )
    at_once = concurrency or len(requests)
    few = requests[:_MAX_LATENCY_REQUESTS]
    _measure(llm, few, len(few))  # warms up: first touches of pages and programs
    measured = [_measure(llm, requests, at_once) for _ in range(max(1, rounds))]
    metrics = llm.get_metrics()
    return {
        "workload": workload,
        "num_requests": len(requests),
        "concurrency": at_once,
        "slots": llm.geometry.num_slots,
        "throughput": min(measured, key=lambda one: one["seconds"]),
        "latency": _measure(llm, few, 1),
        "load_seconds": metrics.get("model_load_seconds"),
        "compile_seconds": metrics.get("compile_seconds"),
        "kv_cache_usage_peak": metrics.get("kv_cache_usage_peak_perc"),
    }


def _measure(llm: "LLM", requests: Sequence[BenchRequest], concurrency: int) -> dict[str, Any]:
    """Serves the requests, `concurrency` at once, with an empty prefix cache."""
    llm.reset_prefix_cache()
    before, prompts = llm.get_metrics(), PromptMaker(llm)
    waiting, running = deque(requests), dict[str, "Task"]()
    statistics, start = Statistics(), time.perf_counter()
    try:
        while waiting or running:
            while waiting and len(running) < concurrency:
                task = _add(llm, waiting.popleft(), prompts)
                running[task.request_id] = task
            ended = [one.request_id for one in llm.engine.step() if one.finish_reason is not None]
            for name in dict.fromkeys(ended):
                if running[name].is_finished:
                    statistics.observe(_served(running.pop(name)))
        seconds = time.perf_counter() - start
        while llm.engine.has_work:
            llm.engine.step()
    except BaseException:
        llm.engine.reset()
        raise
    return {
        **statistics.summary(seconds),
        "requests_per_s": len(requests) / seconds,
        "speculation": drafted_between(before, llm.get_metrics()),
    }


def _served(task: "Task") -> "RequestOutput":
    output = task.output(None)
    error = failure(output)
    if error is not None:
        raise RequestError(f"a request of the workload was not served: {error}")
    return output


def drafted_between(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, Any]:
    """What was drafted between two snapshots; empty where nothing was.

    An estimated gain of 0 says that there was nothing to compare with.
    """

    def made(name: str) -> float:
        return after.get(f"spec_decode_{name}", 0.0) - before.get(f"spec_decode_{name}", 0.0)

    if not made("num_drafts"):
        return {}
    return {
        "num_draft_tokens": made("num_draft_tokens"),
        "num_accepted_tokens": made("num_accepted_tokens"),
        "acceptance_rate": made("num_accepted_tokens") / made("num_draft_tokens"),
        "mean_acceptance_length": 1 + made("num_accepted_tokens") / made("num_drafts"),
        "draft_seconds": made("draft_seconds"),
        "verify_seconds": made("verify_seconds"),
        "accepted_per_position": _per_position(made),
        "estimated_gain": made("instead_seconds") / (made("compared_seconds") or math.inf),
    }


def _per_position(made: Callable[[str], float]) -> list[float]:
    """The share of drafts that stood at each place, up to the last that ever did."""
    places = (f'num_accepted_tokens_per_pos{{position="{place}"}}' for place in count())
    return [stood / made("num_drafts") for stood in takewhile(bool, map(made, places))]


def _add(llm: "LLM", request: BenchRequest, prompts: PromptMaker) -> "Task":
    prompt = prompts.prompt(request.line) if request.line is not None else request.prompt
    task = llm.engine.add(prompt, request.params)
    if task.error is not None:
        name = f"{request.line.custom_id}: " if request.line is not None else ""
        raise RequestError(f"{name}{task.error}")
    return task


def print_bench(result: dict[str, Any], *, as_json: bool, console: Console) -> None:
    """Prints the figures as one JSON line or as a table."""
    if as_json:
        console.file.write(json.dumps(result) + "\n")
        return
    table = Table(
        title=f"{result['workload']}: {result['num_requests']} requests, {result['slots']} slots",
        title_justify="left",
    )
    table.add_column()
    together = f"{result['concurrency']} at once"
    for name in (together, "one at a time"):
        table.add_column(name, justify="right")
    for name, first, second in _rows(result["throughput"], result["latency"]):
        table.add_row(name, first, second)
    console.print(table)


def _rows(*measured: dict[str, Any]) -> list[tuple[str, ...]]:
    rows = []
    for name, key, digits in (
        ("seconds", "seconds", 2),
        ("tokens in", "prompt_tokens", 0),
        ("tokens out", "completion_tokens", 0),
        ("requests/s", "requests_per_s", 2),
        ("tokens/s in", "prompt_tokens_per_s", 1),
        ("tokens/s out", "completion_tokens_per_s", 1),
        ("from the prefix cache", "cached_tokens", 0),
    ):
        rows.append((name, *(f"{one[key]:,.{digits}f}" for one in measured)))
    for name, key in (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("end to end", "e2e_s")):
        for part in ("p50", "p99"):
            shown = (f"{1000 * one[key][part]:,.1f}" if one[key] else "–" for one in measured)
            rows.append((f"{name} {part} ms", *shown))
    drafted = [one.get("speculation", {}) for one in measured]
    for name, key, digits in _DRAFT_ROWS if any(drafted) else ():
        shown = (f"{one[key]:,.{digits}f}" if one else "–" for one in drafted)
        rows.append((name, *shown))
    if any(drafted):
        shares = [one.get("accepted_per_position", []) for one in drafted]
        shown = (" ".join(f"{share:.2f}" for share in one) or "–" for one in shares)
        rows.append(("accepted by place", *shown))
    return rows
