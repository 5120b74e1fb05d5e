"""transformers' `generate` on a workload, as one JSON line; runs in the peer's own environment.

`python bench/peers/run_transformers.py HF_FOLDER --workload mixed48 --dtype bf16 --batch 16`

Static batches of requests sorted by output length, which is the best that `generate` can do here.
A batch runs to its longest request; only the tokens that each request asked for count.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).parents[1]))
from record import Throughput, throughput_line  # noqa: E402  (a script's neighbours)
from workload import WorkloadRow, load_workload  # noqa: E402

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def run_batch(model: Any, tokenizer: Any, rows: list[WorkloadRow]) -> None:
    """Answers the rows together, each with as many tokens as the longest one wants."""
    inputs = tokenizer([row.prompt for row in rows], return_tensors="pt", padding=True)
    inputs.pop("token_type_ids", None)
    longest = max(row.max_tokens for row in rows)
    model.generate(
        **inputs,
        max_new_tokens=longest,
        min_new_tokens=longest,
        do_sample=False,
        pad_token_id=tokenizer.pad_token_id,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--workload", default="mixed48")
    parser.add_argument("--dtype", default="bf16", choices=tuple(DTYPES))
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeat", type=int, default=2)
    options = parser.parse_args()
    rows = sorted(load_workload(options.workload), key=lambda row: row.max_tokens)
    groups = [rows[first : first + options.batch] for first in range(0, len(rows), options.batch)]
    tokenizer = AutoTokenizer.from_pretrained(options.folder, padding_side="left")
    start = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(options.folder, dtype=DTYPES[options.dtype]).eval()
    startup_s = time.perf_counter() - start
    seconds = []
    with torch.inference_mode():
        for _ in range(options.repeat):
            start = time.perf_counter()
            for group in groups:
                run_batch(model, tokenizer, group)
            seconds.append(time.perf_counter() - start)
    result = Throughput(
        engine=f"transformers {options.dtype} batch {options.batch}",
        workload=options.workload,
        tokens=sum(row.max_tokens for row in rows),
        seconds=seconds[-1],
        startup_s=startup_s,
        extra={"torch": torch.__version__, "runs_s": [round(one, 2) for one in seconds]},
    )
    print(throughput_line(result))


if __name__ == "__main__":
    main()
