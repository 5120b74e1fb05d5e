"""What each switch of the host loop brings: tokens/s, TTFT and TPOT with it and without it.

`python bench/features.py --workload mixed48 --rounds 3`

The baseline has every switch at its default. In the variants called "third" the pool holds a third
of the pages that the baseline held at its peak (or `--pages`): "third-reserve" admits a request
when its worst case fits; "third-recompute" and "third-swap" admit more, preempt where pages run
out, and are compared to it. They run out where outputs are long:
`--only third-recompute third-swap --requests 24 --max-num-seqs 16 --output-tokens 192`.

Engines are opened one after the other in this one process, each closed before the next: memory is
that of one, and all find the same warm process and folder of compiled programs. The first requests
run once before, uncounted, and the prefix cache is emptied after them. All requests arrive at once,
so TTFT is mostly the time in the queue.

A round of mixed48 takes about 4 minutes (8 variants of 20 s and 8 starts of 7 s), one of
shared_system 3, the one with long outputs 4; a start without compiled programs takes half a minute
more.
"""

import argparse
import gc
import hashlib
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from record import Throughput, throughput_line  # noqa: E402  (a script's neighbours)
from variants import (  # noqa: E402
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

OPTIMISTIC = {"admission": "optimistic"}
VARIANTS = (
    Variant(name="baseline"),
    Variant(name="no-prefix-cache", options={"enable_prefix_caching": False}),
    Variant(name="no-chunked-prefill", options={"enable_chunked_prefill": False}),
    Variant(name="no-overlap", options={"async_scheduling": False}),
    Variant(name="burst-4", options={"num_decode_steps": 4}),
    Variant(name="third-reserve", options={"admission": "reserve"}),
    Variant(
        name="third-recompute",
        options={**OPTIMISTIC, "preemption": "recompute"},
        compared_to="third-reserve",
    ),
    Variant(
        name="third-swap",
        options={**OPTIMISTIC, "preemption": "swap"},
        compared_to="third-reserve",
    ),
)
WARM_UP_ROWS = 8
WARM_UP_TOKENS = 4


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser, VARIANTS, rounds=1)
    parser.add_argument("--workload", default="mixed48", help="a file of bench/data, no suffix")
    parser.add_argument("--max-num-seqs", type=int, default=32)
    parser.add_argument("--max-model-len", type=int, default=1024)
    parser.add_argument("--pages", type=int, help="pages of the pool called third")
    parser.add_argument("--requests", type=int, help="only the first requests of the workload")
    parser.add_argument("--output-tokens", type=int, help="of every request, not the workload's")
    return parser.parse_args(arguments)


class Bench:
    """Measures variants; the first baseline decides how many pages a third is."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.rows = chosen_rows(options)
        self.pages: int | None = options.pages
        self._options = options

    def measure(self, variant: Variant) -> dict[str, Any]:
        from jaxinfer import LLM

        start = time.perf_counter()
        with LLM(
            self._options.model,
            max_num_seqs=self._options.max_num_seqs,
            max_model_len=self._options.max_model_len,
            show_progress=False,
            **self._engine_options(variant),
        ) as llm:
            startup_s = time.perf_counter() - start
            warm_up(llm, self.rows)
            result = run_once(llm, self.rows)
            if self.pages is None:
                self.pages = third_of_peak(llm, self.rows)
        gc.collect()
        return as_record(variant, self._options.workload, startup_s, result)

    def _engine_options(self, variant: Variant) -> dict[str, Any]:
        if not variant.name.startswith("third"):
            return dict(variant.options)
        return {**variant.options, "num_gpu_blocks_override": self.pages}


def chosen_rows(options: argparse.Namespace) -> list[WorkloadRow]:
    """The requests of the workload, as many and as long as asked for."""
    rows = load_workload(options.workload)[: options.requests]
    tokens = options.output_tokens
    return [replace(row, max_tokens=tokens or row.max_tokens) for row in rows]


def warm_up(llm: Any, rows: Sequence[WorkloadRow]) -> None:
    """Runs what only the first requests of a process pay for; leaves no prefix behind."""
    generate(llm, rows[:WARM_UP_ROWS], [WARM_UP_TOKENS] * min(len(rows), WARM_UP_ROWS))
    llm.reset_prefix_cache()


def generate(llm: Any, rows: Sequence[WorkloadRow], max_tokens: Sequence[int]) -> list[Any]:
    """Greedy outputs of exactly so many tokens each."""
    from jaxinfer import SamplingParams

    params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in max_tokens]
    outputs = llm.generate([row.prompt for row in rows], params, use_tqdm=False)
    for row, output, wanted in zip(rows, outputs, max_tokens, strict=True):
        if output.error is not None or len(output.outputs[0].token_ids) != wanted:
            raise RuntimeError(f"{row.custom_id}: {output.error or 'fewer tokens than asked for'}")
    return outputs


def run_once(llm: Any, rows: Sequence[WorkloadRow]) -> dict[str, Any]:
    """Seconds, tokens, latencies, and what the metrics counted meanwhile."""
    before = llm.get_metrics()
    start = time.perf_counter()
    outputs = generate(llm, rows, [row.max_tokens for row in rows])
    seconds = time.perf_counter() - start
    after = llm.get_metrics()
    first_token_s = [output.metrics.time_to_first_token_s for output in outputs]
    per_token_s = [output.metrics.time_per_output_token_s for output in outputs]
    return {
        "seconds": seconds,
        "tokens": sum(row.max_tokens for row in rows),
        "ttft_p50_s": round(percentile(first_token_s, 50), 3),
        "ttft_p99_s": round(percentile(first_token_s, 99), 3),
        "tpot_p50_ms": round(1e3 * percentile(filter(None, per_token_s), 50), 1),
        "preemptions": int(after["num_preemptions"] - before["num_preemptions"]),
        "prefix_hits": int(after["prefix_cache_hits"] - before["prefix_cache_hits"]),
        "digest": digest(output.outputs[0].token_ids for output in outputs),
    }


def digest(token_ids: Iterable[Sequence[int]]) -> str:
    """The same for the same tokens: variants must not differ in them."""
    return hashlib.sha256(json.dumps(list(token_ids)).encode()).hexdigest()[:16]


def third_of_peak(llm: Any, rows: Sequence[WorkloadRow]) -> int:
    """A third of the pages held at the peak, and no fewer than the largest request takes."""
    geometry = llm.geometry
    usable = sum(geometry.num_pages) / len(geometry.num_pages) - 1
    peak = llm.get_metrics()["kv_cache_usage_peak_perc"] * usable
    tokens = (len(llm.get_tokenizer().encode(row.prompt)) + row.max_tokens for row in rows)
    return max(round(peak / 3), -(-max(tokens) // geometry.page_tokens))


def as_record(
    variant: Variant, workload: str, startup_s: float, result: Mapping[str, Any]
) -> dict[str, Any]:
    """The record that every benchmark prints, with the figures of this one."""
    extra = {name: value for name, value in result.items() if name not in ("seconds", "tokens")}
    line = throughput_line(
        Throughput(
            engine=f"jaxinfer {variant.name}",
            workload=workload,
            tokens=result["tokens"],
            seconds=result["seconds"],
            startup_s=startup_s,
            extra=extra,
        )
    )
    return json.loads(line)


def summarize(
    variants: Sequence[Variant], results: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, Any]:
    """Medians by variant, ratios of tokens/s by round, and whether all gave the same tokens."""
    ran = [one for rounds in results.values() for one in rounds]
    return {
        "same_tokens": len({one["digest"] for one in ran}) == 1,
        "variants": {
            one.name: {
                **medians(results[one.name]),
                **ratios(one, results, "tokens_per_s"),
            }
            for one in variants
        },
        "results": results,
    }


def features_table(summary: Mapping[str, Any]) -> str:
    """A Markdown table, ready for bench/LOG.md."""
    names = ("tokens_per_s", "ttft_p50_s", "ttft_p99_s", "tpot_p50_ms", "preemptions")
    header = ["variant", "tok/s", "TTFT p50 s", "TTFT p99 s", "TPOT p50 ms", "preemptions"]
    header += ["prefix hits", "tok/s against", "ratio", "rounds"]
    rows = []
    for name, entry in summary["variants"].items():
        cells = [name, *(entry[column] for column in (*names, "prefix_hits"))]
        compared = [entry["compared_to"], f"**{entry['ratio']:.2f}**"]
        rows.append([*cells, *compared, ", ".join(f"{one:.2f}" for one in entry["ratio_by_round"])])
    verdict = "the same" if summary["same_tokens"] else "DIFFERENT (a bug)"
    return f"{markdown_table(header, rows)}\n\nTokens of all variants: {verdict}."


def main() -> None:
    options = parse(None)
    bench = Bench(options)
    variants = choose(VARIANTS, options.only)
    summary = summarize(variants, run_rounds(variants, options.rounds, bench.measure))
    print(features_table(summary))
    told = {"model": options.model, "workload": options.workload, "pages_third": bench.pages}
    print(json.dumps(told | device_facts() | summary))


if __name__ == "__main__":
    main()
