"""What the host does a decode step: schedule, stage, update; and how it grows with the requests.

`python bench/host_loop.py --model smollm2-135m`

A real scheduler plans steps, `runner.staging` makes batches of them, and what a device would have
drawn is made up: nothing runs on one. Text and metrics are left out. Prompts differ in length, else
all requests would take a new page in the same step and no median would show it. Time is that of
this thread, so that other processes do not count.

With `--model` an engine then decodes the same prompts at `--model-requests` slots, without overlap;
its step is time on the clock, and the host's part of it is printed. Without a model it takes 10
seconds; with SmolLM2 on two cores 2 minutes, most of them prefill.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from variants import (  # noqa: E402  (a script's neighbour)
    device_facts,
    markdown_table,
    medians,
    percentile,
)

Figures = Mapping[str, float]
PARTS = ("schedule", "stage", "update")
MAX_MODEL_LEN = 2048
WARM_UP = 4  # steps before those that are counted
SPREAD = 64  # prompts are up to so many tokens longer than --context


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, nargs="+", default=[8, 64, 256])
    parser.add_argument("--steps", type=int, default=400, help="decode steps that are counted")
    parser.add_argument("--rounds", type=int, default=10, help="turns that they are counted in")
    parser.add_argument("--context", type=int, default=256, help="tokens of the shortest prompt")
    parser.add_argument("--model", help="demo name, folder or GGUF file to compare with")
    parser.add_argument("--model-requests", type=int, default=64, help="slots of that engine")
    parser.add_argument("--model-steps", type=int, default=32, help="its steps that are counted")
    return parser.parse_args(arguments)


def prompts(num_requests: int, context: int) -> list[list[int]]:
    """Token ids; no two prompts begin alike."""
    lengths = [context + 7 * number % SPREAD for number in range(num_requests)]
    return [
        [1000 + number, *(3 + (5 * number + place) % 900 for place in range(1, length))]
        for number, length in enumerate(lengths)
    ]


def host_loops(options: argparse.Namespace, counts: Sequence[int]) -> dict[int, dict[str, float]]:
    """Medians of the parts of a decode step, in microseconds, for each number of requests.

    The numbers take turns, so that a slow minute hits all of them; growth is the median over the
    turns.
    """
    schedulers = {count: running_scheduler(count, options) for count in counts}
    rounds: dict[int, list[Figures]] = {count: [] for count in counts}
    for _ in range(options.rounds):
        for count, scheduler in schedulers.items():
            rounds[count].append(decode_some(scheduler, options.steps // options.rounds))
    return {count: {**medians(rounds[count]), **growth(rounds, count)} for count in counts}


def decode_some(scheduler: Any, steps: int) -> dict[str, float]:
    """Medians of `steps` steps; a few run before."""
    times: dict[str, list[float]] = {name: [] for name in PARTS}
    for count in range(WARM_UP + steps):
        seconds = decode_once(scheduler)
        if count >= WARM_UP:
            for name, value in zip(PARTS, seconds, strict=True):
                times[name].append(1e6 * value)
    total = [sum(parts) for parts in zip(*times.values(), strict=True)]
    figures = {f"{name}_us": statistics.median(times[name]) for name in PARTS}
    return figures | {"step_us": statistics.median(total), "step_p99_us": percentile(total, 99)}


def growth(rounds: Mapping[int, Sequence[Figures]], count: int) -> dict[str, float]:
    """How many times as long a step takes as with the next smaller number of requests."""
    fewer = max((other for other in rounds if other < count), default=None)
    if fewer is None:
        return {}
    pairs = zip(rounds[count], rounds[fewer], strict=True)
    ratio = statistics.median(one["step_us"] / other["step_us"] for one, other in pairs)
    return {"growth": ratio, "requests_ratio": count / fewer}


def running_scheduler(num_requests: int, options: argparse.Namespace) -> Any:
    """A scheduler whose requests have all been prefilled."""
    from jaxinfer.config.engine_config import EngineConfig
    from jaxinfer.config.sampling_params import SamplingParams
    from jaxinfer.scheduler.request import Request
    from jaxinfer.scheduler.scheduler import Scheduler

    ask = EngineConfig(
        max_num_seqs=num_requests,
        max_model_len=MAX_MODEL_LEN,
        num_gpu_blocks_override=num_requests * MAX_MODEL_LEN // 64,
    )
    geometry, vocab_size = planned(ask)
    scheduler = Scheduler(geometry, ask, vocab_size)
    params = SamplingParams(max_tokens=MAX_MODEL_LEN, ignore_eos=True)
    for number, tokens in enumerate(prompts(num_requests, options.context)):
        scheduler.add(
            Request(
                request_id=str(number),
                prompt_ids=tokens,
                params=params,
                max_new_tokens=MAX_MODEL_LEN - len(tokens) + 1,
                end_ids=frozenset((2,)),
                stop_ids=frozenset(),
                seed=number,
                order=number,
            )
        )
    while scheduler.num_waiting or not all(one.is_prefilled for one in scheduler.running):
        decode_once(scheduler)
    return scheduler


def planned(ask: Any) -> tuple[Any, int]:
    """The geometry for a model like SmolLM2-135M on a CPU with ample memory, and its V."""
    from jaxinfer.config.geometry import Device, plan_geometry
    from jaxinfer.config.model_config import ModelConfig
    from jaxinfer.config.rope_config import RopeConfig

    model = ModelConfig(
        architecture="llama",
        vocab_size=49152,
        hidden_size=576,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        mlp_size=1536,
        max_position=MAX_MODEL_LEN,
        norm_eps=1e-5,
        windows=(0,) * 30,
        ropes=(RopeConfig(),),
        layer_ropes=(0,) * 30,
        attention_scale=0.125,
    )
    return plan_geometry(ask, model, Device(platform="cpu", free_bytes=1 << 40)), model.vocab_size


def decode_once(scheduler: Any) -> tuple[float, float, float]:
    """One step without a device: CPU seconds of schedule, stage and update."""
    from jaxinfer.config.step_plan import PrefillPlan
    from jaxinfer.runner.staging import stage_decode, stage_prefill, unpack
    from jaxinfer.sampling.draw import PACKED_COLUMNS

    start = time.thread_time()
    step = scheduler.schedule(start)
    planned_s = time.thread_time()
    if isinstance(step.plan, PrefillPlan):
        stage_prefill(step.plan)
    else:
        stage_decode(step.plan)
    staged_s = time.thread_time()
    packed = np.full((step.plan.slots.size, PACKED_COLUMNS), 7, np.int32)  # token 7, finite
    read_s = time.thread_time()
    scheduler.update(step, unpack(packed))
    return planned_s - start, staged_s - planned_s, time.thread_time() - read_s


def model_step(options: argparse.Namespace) -> Figures:
    """The median decode step of a real engine, in milliseconds; without overlap."""
    from jaxinfer import LLM, SamplingParams

    slots = options.model_requests
    with LLM(
        options.model,
        max_num_seqs=slots,
        max_model_len=options.context + SPREAD + WARM_UP + options.model_steps + 16,
        async_scheduling=False,
        show_progress=False,
    ) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
        for tokens in prompts(slots, options.context):
            llm.engine.add(tokens, params)
        scheduler = llm.engine.scheduler
        while scheduler.num_waiting or not all(one.is_prefilled for one in scheduler.running):
            llm.engine.step()
        times = []
        for _ in range(options.model_steps + 2):
            start = time.perf_counter()
            llm.engine.step()
            times.append(1e3 * (time.perf_counter() - start))
    return {"model_requests": slots, "model_step_ms": round(statistics.median(times[2:]), 2)}


def summarize(host: Mapping[int, Figures], model: Figures | None) -> dict[str, Any]:
    """The figures by number of requests, and the host's part of the model's step."""
    rounded = {
        str(count): {name: round(value, 2) for name, value in figures.items()}
        for count, figures in sorted(host.items())
    }
    summary: dict[str, Any] = {"host": rounded}
    if model is not None:
        step_us = host[int(model["model_requests"])]["step_us"]
        share = step_us / (1e3 * model["model_step_ms"])
        summary |= {**model, "host_share_percent": round(100 * share, 2)}
    return summary


def host_table(summary: Mapping[str, Any]) -> str:
    """A Markdown table, ready for bench/LOG.md."""
    names = [f"{part}_us" for part in PARTS] + ["step_us", "step_p99_us", "growth"]
    header = ["requests", *(f"{part} us" for part in PARTS), "step us p50", "p99", "growth"]
    rows = [
        [count, *(figures.get(name, "") for name in names)]
        for count, figures in summary["host"].items()
    ]
    return markdown_table(header, rows)


def main() -> None:
    options = parse(None)
    counts = set(options.requests) | ({options.model_requests} if options.model else set())
    host = host_loops(options, sorted(counts))
    summary = summarize(host, model_step(options) if options.model else None)
    print(host_table(summary))
    told = {"model": options.model, "steps": options.steps, "context": options.context}
    print(json.dumps(told | device_facts() | summary))


if __name__ == "__main__":
    main()
