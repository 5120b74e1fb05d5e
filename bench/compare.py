"""jaxinfer and transformers on one workload, in turn, in one sitting: figures and their ratio.

1. a virtual environment for the peer: `pip install torch transformers accelerate`
2. `python bench/peers/export_hf_folder.py MODEL.gguf FOLDER`: the same weights for the peer
3. `python bench/compare.py --transformers-python VENV/bin/python --hf-folder FOLDER`

Absolute figures drift on a shared machine; quote the ratio.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from record import read_throughput  # noqa: E402  (a script's neighbours)

BENCH = Path(__file__).parent


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--workload", default="mixed48")
    parser.add_argument("--max-num-seqs", default="32")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--transformers-python", required=True, help="python of the peer's venv")
    parser.add_argument("--hf-folder", required=True, help="made by bench/peers/export_hf_folder")
    parser.add_argument("--transformers-dtype", default="bf16", choices=("bf16", "f32"))
    parser.add_argument("--transformers-batch", default="16")
    parser.add_argument("--rounds", type=int, default=2, help="times that each engine runs")
    return parser.parse_args(arguments)


def commands(options: argparse.Namespace) -> dict[str, list[str]]:
    """The command of each engine, by the name that the table shows."""
    ours = [sys.executable, str(BENCH / "throughput.py"), "--model", options.model]
    ours += ["--workload", options.workload, "--max-num-seqs", options.max_num_seqs]
    ours += ["--dtype", options.dtype]
    peer = [options.transformers_python, str(BENCH / "peers" / "run_transformers.py")]
    peer += [options.hf_folder, "--workload", options.workload]
    peer += ["--dtype", options.transformers_dtype, "--batch", options.transformers_batch]
    return {"jaxinfer": ours, "transformers": peer}


def run_rounds(engines: dict[str, list[str]], rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Results by engine; the engines take turns, so that a slow minute hits both."""
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in engines}
    for number in range(1, rounds + 1):
        for name, command in engines.items():
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            result = read_throughput(done.stdout)
            results[name].append(result)
            print(f"round {number} {name}: {result['tokens_per_s']} tok/s", file=sys.stderr)
    return results


def summarize(results: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians and the ratio of the first engine to the second, of medians and round by round."""
    speeds = {name: [one["tokens_per_s"] for one in ran] for name, ran in results.items()}
    first, second = speeds.values()
    return {
        "tokens_per_s": {name: statistics.median(values) for name, values in speeds.items()},
        "rounds": speeds,
        "ratio": round(statistics.median(first) / statistics.median(second), 2),
        "ratio_by_round": [round(a / b, 2) for a, b in zip(first, second, strict=True)],
        "results": results,
    }


def comparison_table(summary: dict[str, Any]) -> str:
    """A Markdown table, ready for bench/LOG.md."""
    lines = ["| engine | tok/s (median) | rounds |", "|---|---|---|"]
    for name, median in summary["tokens_per_s"].items():
        lines.append(f"| {name} | {median} | {', '.join(map(str, summary['rounds'][name]))} |")
    lines.append(f"| ratio | **{summary['ratio']}** | {summary['ratio_by_round']} |")
    return "\n".join(lines)


def main() -> None:
    options = parse(None)
    summary = summarize(run_rounds(commands(options), options.rounds))
    print(comparison_table(summary))
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
