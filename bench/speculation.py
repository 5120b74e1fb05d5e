"""What drafting brings: tokens/s with and without it, acceptance, and where the time goes.

`python bench/speculation.py --workload editing --at-once 1 --only ngram --rounds 3`

Variants take turns on engines that stay open, so that a pair of runs is seconds apart; the prefix
cache is emptied before each. `ngram-always` and the `self-…` variants draft at every step that has
at most `--at-once` requests; `ngram` has the default control, which is what
`--workload mixed48 --at-once 48 --max-num-seqs 32 --only ngram --rounds 5` is about. Greedy, EOS
ignored, so that all variants make the same tokens; that they do is checked.

A start takes half a minute without compiled programs and 7 s with them; a round of `editing` one at
a time about 25 s a variant.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from features import digest, generate, summarize, warm_up  # noqa: E402  (a script's neighbours)
from variants import (  # noqa: E402
    Variant,
    add_arguments,
    choose,
    device_facts,
    markdown_table,
    run_rounds,
)
from workload import load_workload  # noqa: E402

VARIANTS = (
    Variant(name="baseline"),
    Variant(name="ngram", options={"method": "ngram"}),
    Variant(name="ngram-always", options={"method": "ngram"}),
    Variant(name="self-int8", options={"method": "self", "quantization": "int8"}),
    Variant(name="self-int4", options={"method": "self", "quantization": "int4"}),
    Variant(name="self-layers", options={"method": "self"}),
)
COLUMNS = {
    "acceptance_rate": "accepted",
    "mean_acceptance_length": "mean length",
    "draft_seconds": "draft s",
    "verify_seconds": "verify s",
    "estimated_gain": "est. gain",
}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser, VARIANTS, rounds=3)
    parser.add_argument("--workload", default="editing", help="a file of bench/data, no suffix")
    parser.add_argument("--requests", type=int, help="only the first requests of the workload")
    parser.add_argument("--at-once", type=int, default=1, help="requests that run together")
    parser.add_argument("--max-num-seqs", type=int, default=8)
    parser.add_argument("--max-model-len", type=int, default=1024)
    parser.add_argument("--drafts", type=int, default=5, help="tokens drafted at once")
    parser.add_argument("--layers", type=int, default=20, help="of self-layers")
    return parser.parse_args(arguments)


def speculative(variant: Variant, options: argparse.Namespace) -> dict[str, Any] | None:
    """The `speculative_config` of a variant."""
    if not variant.options:
        return None
    made = {**variant.options, "num_speculative_tokens": options.drafts}
    if variant.name == "self-layers":
        made["num_layers"] = options.layers
    if variant.name != "ngram":
        made["adaptive"] = False
        made["tokens_by_running"] = ((options.at_once, options.drafts),)
    return made


class Bench:
    """Engines by variant, and the requests that all of them serve."""

    def __init__(self, options: argparse.Namespace, stack: ExitStack) -> None:
        self.rows = load_workload(options.workload)[: options.requests]
        self._options, self._stack = options, stack
        self._engines: dict[str, Any] = {}

    def measure(self, variant: Variant) -> dict[str, Any]:
        """One run of the whole workload."""
        llm = self._engine(variant)
        llm.reset_prefix_cache()
        before, start = llm.get_metrics(), time.perf_counter()
        outputs = []
        for first in range(0, len(self.rows), self._options.at_once):
            rows = self.rows[first : first + self._options.at_once]
            outputs += generate(llm, rows, [row.max_tokens for row in rows])
        seconds, tokens = time.perf_counter() - start, sum(row.max_tokens for row in self.rows)
        return {
            "seconds": round(seconds, 2),
            "tokens_per_s": round(tokens / seconds, 1),
            "digest": digest(output.outputs[0].token_ids for output in outputs),
            **drafting(before, llm.get_metrics()),
        }

    def _engine(self, variant: Variant) -> Any:
        from jaxinfer import LLM

        if variant.name not in self._engines:
            llm = LLM(
                self._options.model,
                max_num_seqs=self._options.max_num_seqs,
                max_model_len=self._options.max_model_len,
                speculative_config=speculative(variant, self._options),
                show_progress=False,
            )
            self._engines[variant.name] = self._stack.enter_context(llm)
            warm_up(llm, self.rows)
        return self._engines[variant.name]


def drafting(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What was drafted, accepted and spent between two snapshots; zeros where nothing was."""
    from jaxinfer.jobs.bench import drafted_between

    found = drafted_between(before, after)
    return {name: round(found.get(name, 0.0), 3) for name in COLUMNS}


def speculation_table(summary: Mapping[str, Any]) -> str:
    """A Markdown table, ready for bench/LOG.md."""
    header = ["variant", "tok/s", *COLUMNS.values(), "ratio", "rounds"]
    rows = []
    for name, entry in summary["variants"].items():
        rounds = ", ".join(f"{one:.2f}" for one in entry["ratio_by_round"])
        figures = [entry[column] for column in ("tokens_per_s", *COLUMNS)]
        rows.append([name, *figures, f"**{entry['ratio']:.2f}**", rounds])
    verdict = "the same" if summary["same_tokens"] else "DIFFERENT (a bug)"
    return f"{markdown_table(header, rows)}\n\nTokens of all variants: {verdict}."


def main() -> None:
    options = parse(None)
    variants = choose(VARIANTS, options.only)
    with ExitStack() as stack:
        bench = Bench(options, stack)
        summary = summarize(variants, run_rounds(variants, options.rounds, bench.measure))
    print(speculation_table(summary))
    told = {name: getattr(options, name) for name in ("model", "workload", "at_once", "drafts")}
    print(json.dumps(told | device_facts() | summary))


if __name__ == "__main__":
    main()
