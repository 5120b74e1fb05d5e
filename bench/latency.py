"""TTFT and TPOT of short requests among long ones that arrive on a timetable.

`python bench/latency.py --rounds 1`

The requests of long_short arrive evenly over `--window` seconds, whatever the engine is doing; TTFT
counts from the planned arrival. A gap is the time between two tokens of one running request: a long
prompt that is prefilled in one go shows there. Every variant is an engine of its own, opened after
the last one is closed; a few requests run uncounted before.

A round takes 4 minutes: 5 variants of 38 s and 5 starts of 8 s. "latency-class-no-others", where
long requests only run while no short one does, is left out unless it is asked for. With SmolLM2 on
two cores the device is busy for about 70 % of the window; elsewhere choose one that keeps it so.
"""

import argparse
import gc
import json
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from variants import (  # noqa: E402  (a script's neighbours)
    Variant,
    add_arguments,
    choose,
    device_facts,
    markdown_table,
    medians,
    percentile,
    ratios,
    run_rounds,
)
from workload import WorkloadRow, load_workload  # noqa: E402

CLASS = "latency_class"  # in a variant's options: short requests are latency-sensitive
THRESHOLD = {"long_prefill_token_threshold": 64}
VARIANTS = (
    Variant(name="baseline"),
    Variant(name="no-chunked-prefill", options={"enable_chunked_prefill": False}),
    Variant(name="threshold-64", options=THRESHOLD),
    Variant(name="latency-class", options={CLASS: True}),
    Variant(name="threshold-64-latency-class", options={**THRESHOLD, CLASS: True}),
    Variant(name="latency-class-no-others", options={CLASS: True, "latency_max_num_seqs": 0}),
)
DEFAULT = [one.name for one in VARIANTS[:-1]]


@dataclass(slots=True, kw_only=True)
class Served:
    """What a client saw of one request: seconds from the beginning of the timetable."""

    row: WorkloadRow
    arrival_s: float
    token_s: list[float] = field(default_factory=list)

    @property
    def is_long(self) -> bool:
        return self.row.custom_id.startswith("long")

    @property
    def ttft_s(self) -> float:
        return self.token_s[0] - self.arrival_s

    @property
    def tpot_s(self) -> float:
        return (self.token_s[-1] - self.token_s[0]) / (len(self.token_s) - 1)

    @property
    def gaps_s(self) -> list[float]:
        return [b - a for a, b in zip(self.token_s, self.token_s[1:], strict=False)]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser, VARIANTS, rounds=1)
    parser.add_argument("--workload", default="long_short", help="a file of bench/data, no suffix")
    parser.add_argument("--window", type=float, default=36.0, help="seconds from first to last")
    parser.add_argument("--max-num-seqs", type=int, default=16)
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--requests", type=int, help="only the first requests of the workload")
    return parser.parse_args(arguments)


def measure(variant: Variant, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of one variant, in an engine of its own."""
    from jaxinfer import LLM

    rows = load_workload(options.workload)[: options.requests]
    settings = dict(variant.options)
    has_class = settings.pop(CLASS, False)
    with LLM(
        options.model,
        max_num_seqs=options.max_num_seqs,
        max_model_len=options.max_model_len,
        show_progress=False,
        **settings,
    ) as llm:
        warm_up(llm, rows)
        served = serve(llm, timetable(rows, options.window), has_class=has_class)
    gc.collect()
    return latencies(served)


def timetable(rows: Sequence[WorkloadRow], window_s: float) -> list[Served]:
    """Requests in order of arrival, evenly spaced."""
    spacing = window_s / max(1, len(rows) - 1)
    return [Served(row=row, arrival_s=place * spacing) for place, row in enumerate(rows)]


def warm_up(llm: Any, rows: Sequence[WorkloadRow]) -> None:
    """Runs what only the first requests of a process pay for; leaves no prefix behind."""
    from jaxinfer import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    llm.generate([row.prompt for row in rows[:8]], params, use_tqdm=False)
    llm.reset_prefix_cache()


def serve(llm: Any, arrivals: Sequence[Served], *, has_class: bool) -> list[Served]:
    """Adds each request when its time has come and steps the engine in between."""
    waiting, running = deque(arrivals), {}
    start = time.perf_counter()
    while waiting or llm.engine.has_work:
        now = time.perf_counter() - start
        while waiting and waiting[0].arrival_s <= now:
            served = waiting.popleft()
            running[add(llm, served, has_class=has_class)] = served
        if not llm.engine.has_work:
            time.sleep(max(0.0, waiting[0].arrival_s - (time.perf_counter() - start)))
            continue
        deltas = llm.engine.step()
        now = time.perf_counter() - start
        for delta in deltas:
            if delta.error is not None:
                raise RuntimeError(f"{running[delta.request_id].row.custom_id}: {delta.error}")
            running[delta.request_id].token_s += [now] * len(delta.token_ids)
    return list(arrivals)


def add(llm: Any, served: Served, *, has_class: bool) -> str:
    """Queues a request; its id."""
    from jaxinfer import RequestOptions, SamplingParams

    task = llm.engine.add(
        served.row.prompt,
        SamplingParams(temperature=0.0, max_tokens=served.row.max_tokens, ignore_eos=True),
        RequestOptions(latency_sensitive=has_class and not served.is_long),
    )
    if task.error is not None:
        raise RuntimeError(f"{served.row.custom_id}: {task.error}")
    return task.request_id


def latencies(served: Sequence[Served]) -> dict[str, Any]:
    """TTFT of short and long requests in seconds; TPOT and gaps of all in milliseconds."""
    shorts = [one.ttft_s for one in served if not one.is_long]
    longs = [one.ttft_s for one in served if one.is_long]
    per_token = [1e3 * one.tpot_s for one in served if len(one.token_s) > 1]
    gaps = [1e3 * gap for one in served for gap in one.gaps_s]
    figures = {f"short_ttft_p{p}_s": round(percentile(shorts, p), 3) for p in (50, 90, 99)}
    figures |= {f"long_ttft_p{p}_s": round(percentile(longs, p), 3) for p in (50, 99)}
    figures |= {f"tpot_p{p}_ms": round(percentile(per_token, p), 1) for p in (50, 90, 99)}
    return figures | {
        "gap_p99_ms": round(percentile(gaps, 99), 1),
        "gap_max_ms": round(max(gaps), 1),
        "seconds": round(max(one.token_s[-1] for one in served), 2),
    }


def summarize(
    variants: Sequence[Variant], results: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, Any]:
    """Medians by variant, and the ratios of the longest gap by round."""
    entries = {
        one.name: {**medians(results[one.name]), **ratios(one, results, "gap_max_ms")}
        for one in variants
    }
    return {"variants": entries, "results": results}


def latency_table(summary: Mapping[str, Any]) -> str:
    """A Markdown table, ready for bench/LOG.md."""
    header = ["variant", "short TTFT s p50", "p90", "p99", "long TTFT s p50", "p99"]
    header += ["TPOT ms p50", "p90", "p99", "gap ms p99", "longest", "its ratio", "all done s"]
    names = [f"short_ttft_p{p}_s" for p in (50, 90, 99)] + ["long_ttft_p50_s", "long_ttft_p99_s"]
    names += [f"tpot_p{p}_ms" for p in (50, 90, 99)]
    names += ["gap_p99_ms", "gap_max_ms", "ratio", "seconds"]
    rows = [[name, *(entry[n] for n in names)] for name, entry in summary["variants"].items()]
    return markdown_table(header, rows)


def main() -> None:
    options = parse(None)
    variants = choose(VARIANTS, options.only or DEFAULT)
    results = run_rounds(variants, options.rounds, lambda one: measure(one, options))
    summary = summarize(variants, results)
    print(latency_table(summary))
    told = {"model": options.model, "workload": options.workload, "window_s": options.window}
    print(json.dumps(told | device_facts() | summary))


if __name__ == "__main__":
    main()
