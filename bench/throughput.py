"""Tokens/s of jaxinfer on a workload, as one JSON line.

`python bench/throughput.py --model smollm2-135m --workload mixed48`

The protocol is the peers' (bench/peers): greedy, EOS ignored, every request with its own number of
output tokens; the first run warms up, the last one counts; useful output tokens over wall time.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from record import Throughput, throughput_line  # noqa: E402  (a script's neighbours)
from workload import WorkloadRow, load_workload  # noqa: E402


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2-135m", help="demo name, folder or GGUF file")
    parser.add_argument("--workload", default="mixed48", help="a file of bench/data, no suffix")
    parser.add_argument("--max-num-seqs", type=int, default=32)
    parser.add_argument("--max-model-len", type=int, default=1024)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--repeat", type=int, default=2, help="runs; the last one counts")
    return parser.parse_args(arguments)


def measure(options: argparse.Namespace) -> Throughput:
    import jax

    from jaxinfer import LLM

    rows = load_workload(options.workload)
    start = time.perf_counter()
    with LLM(
        options.model,
        dtype=options.dtype,
        max_num_seqs=options.max_num_seqs,
        max_model_len=options.max_model_len,
    ) as llm:
        startup_s = time.perf_counter() - start
        seconds = [run_once(llm, rows) for _ in range(options.repeat)]
        metrics = llm.get_metrics()
    return Throughput(
        engine=f"jaxinfer {options.dtype} {options.max_num_seqs} slots",
        workload=options.workload,
        tokens=sum(row.max_tokens for row in rows),
        seconds=seconds[-1],
        startup_s=startup_s,
        extra={
            "jax": jax.__version__,
            "device": jax.devices()[0].device_kind,
            "num_programs": int(metrics["num_programs"]),
            "num_compiles": int(metrics["num_compiles"]),
            "compile_seconds": round(metrics["compile_seconds"], 2),
            "runs_s": [round(one, 2) for one in seconds],
        },
    )


def run_once(llm: Any, rows: Sequence[WorkloadRow]) -> float:
    """Seconds for all rows together; checks that each has all of its tokens."""
    from jaxinfer import SamplingParams

    params = [
        SamplingParams(temperature=0.0, max_tokens=row.max_tokens, ignore_eos=True) for row in rows
    ]
    start = time.perf_counter()
    outputs = llm.generate([row.prompt for row in rows], params, use_tqdm=False)
    seconds = time.perf_counter() - start
    for row, output in zip(rows, outputs, strict=True):
        if output.error is not None or len(output.outputs[0].token_ids) != row.max_tokens:
            raise RuntimeError(f"{row.custom_id}: {output.error or 'fewer tokens than asked for'}")
    return seconds


if __name__ == "__main__":
    print(throughput_line(measure(parse(None))))
