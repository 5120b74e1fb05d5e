"""Cold and warm start of jaxinfer, as one JSON line.

`python bench/start.py --model smollm2-135m`

Two processes, one after the other, start the same engine with one new folder of compiled programs:
empty for the first (cold), filled for the second (warm). The ratio is of their compile seconds.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from record import read_throughput  # noqa: E402  (a script's neighbours)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2-135m", help="demo name, folder or GGUF file")
    parser.add_argument("--max-num-seqs", type=int, default=8)
    parser.add_argument("--only-in", metavar="FOLDER", help="one start with this program folder")
    return parser.parse_args(arguments)


def start_once(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of one start, in this process; total_s is that of `LLM(...)`, tracing included."""
    from jaxinfer import LLM

    start = time.perf_counter()
    with LLM(
        options.model,
        max_num_seqs=options.max_num_seqs,
        compilation_cache_dir=options.only_in,
    ) as llm:
        total_s = time.perf_counter() - start
        metrics = llm.get_metrics()
    return {
        "load_s": round(metrics["model_load_seconds"], 2),
        "compile_s": round(metrics["compile_seconds"], 2),
        "total_s": round(total_s, 2),
        "num_programs": int(metrics["num_programs"]),
    }


def start_twice(options: argparse.Namespace) -> dict[str, Any]:
    """The cold and the warm start, each in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--model", options.model, "--only-in", folder]
        command += ["--max-num-seqs", str(options.max_num_seqs)]
        starts = [
            read_throughput(
                subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            )
            for _ in range(2)
        ]
    return summarize(options.model, *starts)


def summarize(model: str, cold: dict[str, Any], warm: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": model,
        "cold": cold,
        "warm": warm,
        "compile_ratio": round(warm["compile_s"] / cold["compile_s"], 3),
    }


if __name__ == "__main__":
    asked = parse(None)
    print(json.dumps(start_once(asked) if asked.only_in else start_twice(asked)))
