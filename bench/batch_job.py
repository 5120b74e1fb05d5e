"""What `jaxinfer batch` loses against `LLM.generate` on a workload, as one JSON line.

`python bench/batch_job.py --model smollm2-135m --workload mixed48 --pairs 5`

One engine serves both, so that loading is left out: in turn, `generate` with all prompts at once,
and a batch job that reads the same requests from a file and writes their results. Both are greedy
with EOS ignored. The loss is that of the median of the pairs' ratios, in percent.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from throughput import run_once  # noqa: E402  (a script's neighbours)
from workload import WorkloadRow, load_workload  # noqa: E402


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2-135m", help="demo name, folder or GGUF file")
    parser.add_argument("--workload", default="mixed48", help="a file of bench/data, no suffix")
    parser.add_argument("--max-num-seqs", type=int, default=32)
    parser.add_argument("--max-model-len", type=int, default=1024)
    parser.add_argument("--pairs", type=int, default=5)
    return parser.parse_args(arguments)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    from jaxinfer import LLM

    rows = load_workload(options.workload)
    pairs = []
    with LLM(
        options.model, max_num_seqs=options.max_num_seqs, max_model_len=options.max_model_len
    ) as llm:
        run_once(llm, rows)
        for number in range(options.pairs):
            # Who comes first changes from pair to pair: a drift hits both.
            runs = [("generate", run_once), ("batch", run_job)]
            seconds = {}
            for name, run in runs if number % 2 == 0 else runs[::-1]:
                llm.reset_prefix_cache()
                seconds[name] = run(llm, rows)
            pairs.append((seconds["generate"], seconds["batch"]))
            print(f"pair {number + 1}: {seconds}", file=sys.stderr)
    return {"model": options.model, "workload": options.workload, **summarize(pairs)}


def run_job(llm: Any, rows: Sequence[WorkloadRow]) -> float:
    """Seconds of a batch job of all rows, from the input file to the last line written."""
    from jaxinfer.jobs.batch import BatchJob
    from jaxinfer.jobs.batch_settings import BatchSettings

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "in.jsonl"
        lines = (
            {"custom_id": r.custom_id, "prompt": r.prompt, "max_tokens": r.max_tokens} for r in rows
        )
        source.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        ask = BatchSettings(
            source=str(source),
            output=Path(folder) / "out.jsonl",
            model="model",
            params={"temperature": 0.0, "ignore_eos": True},
        )
        start = time.perf_counter()
        summary = BatchJob(ask, {}, lambda: left_open(llm), lambda: "model").run()  # type: ignore[arg-type]
        seconds = time.perf_counter() - start
    if summary.done != len(rows) or summary.run["completion_tokens"] != sum(
        row.max_tokens for row in rows
    ):
        raise RuntimeError(f"{summary.failed} lines failed, or gave fewer tokens than asked for")
    return seconds


@contextmanager
def left_open(llm: Any):
    """The engine for a job that would close it."""
    yield llm


def summarize(pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Args: pairs: seconds of `generate` and of the job."""
    ratios = [job / generate for generate, job in pairs]
    return {
        "loss_percent": round(100 * (statistics.median(ratios) - 1), 2),
        "ratios": [round(one, 4) for one in ratios],
        "generate_s": [round(one, 2) for one, _ in pairs],
        "batch_s": [round(one, 2) for _, one in pairs],
    }


if __name__ == "__main__":
    print(json.dumps(measure(parse(None))))
