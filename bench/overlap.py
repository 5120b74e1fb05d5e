"""Does the device wait for the host? The profiler's answer, with overlap on and off.

`python bench/overlap.py --rounds 2`

8 and then 32 requests decode; jax's profiler records a number of steps in their midst. In what it
wrote every op of a program carries the `run_id` of its execution: from the first op to the last a
program runs, and from there to the first op of the next the device waits. Without `--python-calls`
Python's own calls are not recorded: that slows the host down, so waits would look longer than they
are. With it the profile is what `LLM.start_profile` writes.

Reads the host's threads, where programs run on a CPU. A round takes about a minute: 3 engines that
start in 8 s, and twice 60 steps of 30 and 70 ms with each; writing and reading profiles is half.
"""

import argparse
import gc
import json
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

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

VARIANTS = (
    Variant(name="baseline"),
    Variant(name="no-overlap", options={"async_scheduling": False}),
    Variant(name="no-overlap-burst-4", options={"async_scheduling": False, "num_decode_steps": 4}),
)
MARGIN = 2  # executions at either end that starting and stopping the profiler may have disturbed


class Execution(NamedTuple):
    """One run of a program on the device, in nanoseconds."""

    program: str
    start_ns: float
    end_ns: float


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser, VARIANTS, rounds=2)
    parser.add_argument("--max-num-seqs", type=int, default=32, help="slots")
    parser.add_argument("--rows", type=int, nargs="+", default=[8, 32], help="requests that decode")
    parser.add_argument("--steps", type=int, default=48, help="steps that are profiled")
    parser.add_argument("--python-calls", action="store_true", help="record those too (slower)")
    options = parser.parse_args(arguments)
    if max(options.rows) > options.max_num_seqs:
        parser.error(f"--rows {max(options.rows)} is more than --max-num-seqs")
    return options


def measure(variant: Variant, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of one variant, for each number of requests."""
    from jaxinfer import LLM

    figures: dict[str, Any] = {}
    with LLM(
        options.model,
        max_num_seqs=options.max_num_seqs,
        max_model_len=512,
        show_progress=False,
        **variant.options,
    ) as llm:
        for rows in options.rows:
            executions = profile(llm, rows, options)
            figures |= {f"{name}_{rows}": value for name, value in waits(executions).items()}
    gc.collect()
    return figures


def profile(llm: Any, rows: int, options: argparse.Namespace) -> list[Execution]:
    """Executions in the midst of `rows` requests' decoding."""
    from jaxinfer import SamplingParams

    tokens = 3 * options.steps + 64
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    tasks = [llm.engine.add(f"Count on from {number}:", params) for number in range(rows)]
    while any(len(task.completions[0].request.output_ids) < 4 for task in tasks):
        llm.engine.step()
    with tempfile.TemporaryDirectory() as folder:
        with profiling(llm, folder, python_calls=options.python_calls):
            for _ in range(options.steps // llm.engine_config.num_decode_steps):
                llm.engine.step()
        executions = read_executions(Path(folder))
    for task in tasks:
        llm.engine.abort(task)
    while llm.engine.has_work:
        llm.engine.step()
    return executions


@contextmanager
def profiling(llm: Any, folder: str, *, python_calls: bool) -> Iterator[None]:
    """jax's profiler, as `LLM.start_profile` starts it or without Python's calls."""
    import jax

    if python_calls:
        llm.start_profile(folder)
    else:
        asked = jax.profiler.ProfileOptions()
        asked.python_tracer_level = 0
        jax.profiler.start_trace(folder, profiler_options=asked)
    try:
        yield
    finally:
        llm.stop_profile() if python_calls else jax.profiler.stop_trace()


def read_executions(folder: Path) -> list[Execution]:
    """What ran on the device, in order.

    Raises:
        RuntimeError: the profile holds no execution.
    """
    from jax.profiler import ProfileData

    (path,) = folder.rglob("*.xplane.pb")
    runs: dict[Any, Execution] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of jax's own binding
        for event in events(ProfileData.from_file(str(path))):
            stats = dict(event.stats)
            if "hlo_module" in stats and "run_id" in stats:
                span = Execution(stats["hlo_module"], event.start_ns, event.end_ns)
                key = stats["run_id"]
                runs[key] = joined(runs[key], span) if key in runs else span
    if not runs:
        raise RuntimeError(f"no op with a run_id in {path.name}: not a CPU, or nothing ran")
    return sorted(runs.values(), key=lambda run: run.start_ns)


def events(data: Any) -> Iterator[Any]:
    """What the profile recorded, without the ends of ops and the calls of Python."""
    for plane in data.planes:
        for line in plane.lines:
            yield from (one for one in line.events if not one.name.startswith(("end: ", "$")))


def joined(run: Execution, span: Execution) -> Execution:
    """From the earlier start to the later end."""
    start, end = min(run.start_ns, span.start_ns), max(run.end_ns, span.end_ns)
    return Execution(run.program, start, end)


def waits(executions: Sequence[Execution]) -> dict[str, Any]:
    """How long no program ran between executions: share of the time, and each wait in µs."""
    inner = executions[MARGIN:-MARGIN]
    gaps, busy_until = [], inner[0].end_ns
    for run in inner[1:]:
        gaps.append(max(0.0, run.start_ns - busy_until))
        busy_until = max(busy_until, run.end_ns)
    wall = busy_until - inner[0].start_ns
    return {
        "steps": len(inner),
        "step_ms": round(wall / len(inner) / 1e6, 2),
        "wait_share": round(sum(gaps) / wall, 5),
        "wait_p50_us": round(percentile(gaps, 50) / 1e3, 1),
        "wait_p99_us": round(percentile(gaps, 99) / 1e3, 1),
    }


def summarize(
    variants: Sequence[Variant],
    results: Mapping[str, Sequence[Mapping[str, Any]]],
    rows: Sequence[int],
) -> dict[str, Any]:
    """Medians by variant, and for each number of requests the ratios of the step's time."""
    entries = {
        one.name: medians(results[one.name])
        | {f"step_ratio_{n}": ratios(one, results, f"step_ms_{n}")["ratio"] for n in rows}
        for one in variants
    }
    return {"variants": entries, "results": results}


def overlap_table(summary: Mapping[str, Any], rows: Sequence[int]) -> str:
    """A Markdown table, ready for bench/LOG.md."""
    header = ["variant", "requests", "step ms", "its ratio", "no program runs"]
    header += ["wait us p50", "p99"]
    lines = [
        [
            *(name, n, entry[f"step_ms_{n}"], f"{entry[f'step_ratio_{n}']:.2f}"),
            f"**{100 * entry[f'wait_share_{n}']:.2f} %**",
            *(entry[f"wait_p50_us_{n}"], entry[f"wait_p99_us_{n}"]),
        ]
        for n in rows
        for name, entry in summary["variants"].items()
    ]
    return markdown_table(header, lines)


def main() -> None:
    options = parse(None)
    variants = choose(VARIANTS, options.only)
    results = run_rounds(variants, options.rounds, lambda one: measure(one, options))
    summary = summarize(variants, results, options.rows)
    print(overlap_table(summary, options.rows))
    told = {"model": options.model, "python_calls": options.python_calls}
    print(json.dumps(told | device_facts() | summary))


if __name__ == "__main__":
    main()
