"""What a quantized KV cache costs: KL and top-1 agreement against the float cache, by context.

`python bench/kv_cache.py` runs all; in pieces, with what the float cache gave kept between them:
`python bench/kv_cache.py --folder FOLDER --only float32`, then `--only int8`, and so on.

Text that ships with Python (`pydoc_data.topics`) goes through the engine's own steps by teacher
forcing: one pass over the longest context, most of it by prefill and the last tokens by decode.
Judged are the last positions before each length, over the whole vocabulary.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from variants import device_facts, markdown_table  # noqa: E402  (a script's neighbour)

BASELINE = "float32"
CACHES = (BASELINE, "bfloat16", "int8", "int8_key_only", "fp8")
CONTEXTS = (256, 1024, 4096, 8192)
JUDGED = 256  # positions before each length
DECODED = 16  # the last tokens of all, one by one


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2-135m", help="demo name, folder or GGUF file")
    parser.add_argument("--only", nargs="+", choices=CACHES, default=list(CACHES))
    parser.add_argument("--contexts", nargs="+", type=int, default=list(CONTEXTS))
    parser.add_argument("--judged", type=int, default=JUDGED, help="positions before each length")
    parser.add_argument("--folder", type=Path, help="keeps the float cache's logits between runs")
    return parser.parse_args(arguments)


def text() -> str:
    """The topics in the order of their names."""
    return "\n".join(topics[name] for name in sorted(topics))


def judged_places(contexts: Sequence[int], judged: int) -> list[int]:
    """Positions before each length, contexts in turn; a context shorter than that is judged whole.

    Example: contexts 4 and 8, 3 judged → 1 2 3 5 6 7.
    """
    return [place for end in contexts for place in range(max(0, end - judged), end)]


def divergence(plain: np.ndarray, other: np.ndarray) -> np.ndarray:
    """KL(plain ‖ other) of each row of logits, in nats, float64."""
    logs = [_log_softmax(rows.astype(np.float64)) for rows in (plain, other)]
    return (np.exp(logs[0]) * (logs[0] - logs[1])).sum(axis=-1)


def _log_softmax(rows: np.ndarray) -> np.ndarray:
    shifted = rows - rows.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def compare(
    plain: np.ndarray, other: np.ndarray, contexts: Sequence[int], judged: int
) -> list[dict[str, float]]:
    """For each context: mean and largest KL, and the share of rows with the same best token."""
    results, first = [], 0
    for context in contexts:
        rows = slice(first, first + min(context, judged))
        first = rows.stop
        # A few rows at a time: float64 of a whole vocabulary is large.
        pieces = [slice(at, min(at + 32, first)) for at in range(rows.start, first, 32)]
        kl = np.concatenate([divergence(plain[piece], other[piece]) for piece in pieces])
        same = plain[rows].argmax(axis=-1) == other[rows].argmax(axis=-1)
        results.append(
            {
                "context": context,
                "kl_mean": float(kl.mean()),
                "kl_max": float(kl.max()),
                "top1_agreement": float(same.mean()),
            }
        )
    return results


def run_cache(options: argparse.Namespace, cache: str) -> tuple[np.ndarray, dict[str, Any]]:
    """Logits of the judged positions, and what the engine was."""
    from jaxinfer import LLM
    from jaxinfer.engine.teacher import forced_logits

    longest = max(options.contexts)
    engine: dict[str, Any] = {
        "kv_cache_dtype": cache,
        "max_model_len": longest,
        "max_num_seqs": 2,
        "prefill_chunk_tokens": 256,
        "max_num_batched_tokens": 256,
        "num_gpu_blocks_override": -(-longest // 64),
    }
    with LLM(options.model, show_progress=False, **engine) as llm:
        tokenizer = llm.get_tokenizer()
        assert tokenizer is not None
        ids = list(tokenizer.encode(text()[: 8 * longest]))[:longest]
        start = time.perf_counter()
        runner, pages = llm.engine.runner, llm.engine.scheduler.pages
        places = judged_places(options.contexts, options.judged)
        logits = forced_logits(runner, pages, ids, decode_from=longest - DECODED, places=places)
        facts = {
            "cache": cache,
            "kv_cache_bytes": llm.memory_plan.kv_cache_bytes,
            "seconds": round(time.perf_counter() - start, 1),
        }
    return logits, facts


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        kept = (options.folder or Path(temporary)) / "float.npy"
        rows = []
        for cache in sorted(options.only, key=CACHES.index):
            logits, facts = run_cache(options, cache)
            if cache == BASELINE:
                kept.parent.mkdir(parents=True, exist_ok=True)
                np.save(kept, logits)
                print(json.dumps(facts | device_facts()), flush=True)
                continue
            if not kept.is_file():
                raise SystemExit(f"{kept} is not there: run with --only {BASELINE} first")
            plain = np.load(kept, mmap_mode="r")
            results = compare(plain, logits, options.contexts, options.judged)
            print(json.dumps(facts | {"contexts": results} | device_facts()), flush=True)
            rows += [table_row(cache, result) for result in results]
    if rows:
        print(markdown_table(("cache", "context", "KL mean", "KL max", "top-1"), rows))


def table_row(cache: str, result: dict[str, float]) -> tuple[str, ...]:
    return (
        cache,
        f"{result['context']:,}",
        f"{result['kl_mean']:.2e}",
        f"{result['kl_max']:.2e}",
        f"{result['top1_agreement']:.2%}",
    )


if __name__ == "__main__":
    main()
