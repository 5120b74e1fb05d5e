"""What drawing costs a decode step: milliseconds by kind of request, and of the noise alone.

`python bench/draw.py`

Logits are random, as flat as noise ("flat") or as peaked as a model's ("peaked"): thresholds of
top-k and top-p are guessed from the best tokens and found by bisection where the guess fails, which
flat logits make it do. The noise is timed against `jax.random.gumbel` with folded-in keys. With 32
rows of 49,152 tokens it takes half a minute.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from variants import device_facts, markdown_table, percentile  # noqa: E402  (a script's neighbour)

from jaxinfer.config.sampling_params import SamplingParams  # noqa: E402
from jaxinfer.sampling.draw import draw, pack  # noqa: E402
from jaxinfer.sampling.logits import SamplingRows  # noqa: E402
from jaxinfer.sampling.noise import gumbel_noise  # noqa: E402
from jaxinfer.sampling.slot_state import init_loop_state  # noqa: E402
from jaxinfer.scheduler.request import Request  # noqa: E402
from jaxinfer.scheduler.sampling_rows import SlotSampling  # noqa: E402

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 1.0},
    "top_k": {"temperature": 1.0, "top_k": 50},
    "top_p": {"temperature": 1.0, "top_p": 0.9},
    "top_k and top_p": {"temperature": 1.0, "top_k": 50, "top_p": 0.9},
    "logprobs": {"temperature": 0.0, "logprobs": 5},
}
SCALES = {"flat": 1.0, "peaked": 4.0}  # of the normal law that logits are taken from


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--vocab-size", type=int, default=49_152)
    parser.add_argument("--repeats", type=int, default=20)
    return parser.parse_args(arguments)


def sampling_rows(params: dict[str, Any], count: int) -> SamplingRows:
    """`count` rows of one kind, each with its own seed."""
    slots = SlotSampling(count)
    for slot in range(count):
        slots.set(
            slot,
            Request(
                request_id=str(slot),
                prompt_ids=[1],
                params=SamplingParams(**params),
                max_new_tokens=16,
                end_ids=frozenset(),
                stop_ids=frozenset(),
                seed=slot,
                order=slot,
            ),
        )
    return SamplingRows(**asdict(slots.rows(np.arange(count))))


def drawing(params: dict[str, Any], scale: float, options: argparse.Namespace) -> Callable:
    """A call that draws a token for every row."""
    count, size = options.rows, options.vocab_size
    made = np.random.default_rng(0).normal(size=(count, size))
    logits = jnp.asarray(scale * made, jnp.float32)
    rows = jax.tree.map(jnp.asarray, sampling_rows(params, count))
    state = init_loop_state(count, size)
    positions, slots = jnp.arange(count, dtype=jnp.int32), jnp.arange(count, dtype=jnp.int32)
    program = jax.jit(lambda *operands: pack(draw(*operands)))
    return lambda: program(logits, rows, positions, state, slots)


def noises(options: argparse.Namespace) -> dict[str, Callable]:
    """Calls that make noise for every row and token: ours, and that of `jax.random`."""
    count, size = options.rows, options.vocab_size
    seeds = jnp.stack([jnp.arange(count), jnp.zeros(count, int)], axis=1).astype(jnp.uint32)
    index, positions = jnp.zeros(count, jnp.int32), jnp.arange(count, dtype=jnp.int32)

    def with_jax_random(seeds: jax.Array, index: jax.Array, positions: jax.Array) -> jax.Array:
        def row(seed: jax.Array, sample: jax.Array, position: jax.Array) -> jax.Array:
            key = jax.random.fold_in(jax.random.fold_in(seed, sample), position)
            return jax.random.gumbel(key, (size,))

        return jax.vmap(row)(seeds, index, positions)

    own = jax.jit(lambda *operands: gumbel_noise(*operands, size))
    peer = jax.jit(with_jax_random)
    return {
        "noise": lambda: own(seeds, index, positions),
        "noise of jax.random": lambda: peer(seeds, index, positions),
    }


def timed(call: Callable, repeats: int) -> dict[str, float]:
    """first_s with the compile; median milliseconds of the others."""
    start = time.perf_counter()
    jax.block_until_ready(call())
    first_s = time.perf_counter() - start
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(1000 * (time.perf_counter() - start))
    return {"ms": round(percentile(times, 50), 2), "first_s": round(first_s, 2)}


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    calls = noises(options)
    for name, params in KINDS.items():
        for form, scale in SCALES.items():
            calls[f"{name}, {form}"] = drawing(params, scale, options)
    results = {}
    for name, call in calls.items():
        results[name] = timed(call, options.repeats)
        print(f"{name}: {results[name]}", file=sys.stderr, flush=True)
    rows = [(name, one["ms"], one["first_s"]) for name, one in results.items()]
    print(markdown_table(("what", "ms", "first s"), rows))
    print(json.dumps({**vars(options), **device_facts(), "results": results}))


if __name__ == "__main__":
    main()
