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

from jaxinfer.quantize.divergence import divergences, next_token_nats, same_best
from jaxinfer.quantize.passages import Passages, cut_passages
from jaxinfer.quantize.quality import AgainstRows, JudgedRows, qualities

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


def compare(
    plain: np.ndarray, other: np.ndarray, passages: Passages
) -> list[dict[str, float | None]]:
    """For each context: KL (mean, 99th percentile, largest), top-1 agreement, and both nats."""
    targets = passages.targets()
    rows = JudgedRows(
        nats=next_token_nats(other, targets),
        against=AgainstRows(
            nats=next_token_nats(plain, targets),
            kl=divergences(plain, other),
            same=same_best(plain, other),
        ),
    )
    return [
        {
            "context": one.context,
            "nats": one.nats,
            "plain_nats": one.against.nats,
            "kl_mean": one.against.kl_mean,
            "kl_p99": one.against.kl_p99,
            "kl_max": one.against.kl_max,
            "top1_agreement": one.against.top1_agreement,
        }
        for one in qualities(rows, passages, None)[0]
        if one.against is not None
    ]


def run_cache(
    options: argparse.Namespace, cache: str
) -> tuple[np.ndarray, Passages, dict[str, Any]]:
    """Logits of the judged positions, where those are, and what the engine was."""
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
        passages = cut_passages(
            tokenizer,
            text()[: 8 * longest],
            contexts=options.contexts,
            judged=options.judged,
            num_passages=1,
        )
        ids = list(passages.token_ids[0][:longest])
        start = time.perf_counter()
        runner, pages = llm.engine.runner, llm.engine.scheduler.pages
        split = longest - DECODED
        logits = forced_logits(runner, pages, ids, decode_from=split, places=passages.places)
        facts = {
            "cache": cache,
            "kv_cache_bytes": llm.memory_plan.kv_cache_bytes,
            "seconds": round(time.perf_counter() - start, 1),
        }
    return logits, passages, facts


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        kept = (options.folder or Path(temporary)) / "float.npy"
        rows = []
        for cache in sorted(options.only, key=CACHES.index):
            logits, passages, facts = run_cache(options, cache)
            if cache == BASELINE:
                kept.parent.mkdir(parents=True, exist_ok=True)
                np.save(kept, logits)
                print(json.dumps(facts | device_facts()), flush=True)
                continue
            if not kept.is_file():
                raise SystemExit(f"{kept} is not there: run with --only {BASELINE} first")
            plain = np.load(kept, mmap_mode="r")
            results = compare(plain, logits, passages)
            print(json.dumps(facts | {"contexts": results} | device_facts()), flush=True)
            rows += [table_row(cache, result) for result in results]
    if rows:
        print(markdown_table(("cache", "context", "KL mean", "KL p99", "KL max", "top-1"), rows))


def table_row(cache: str, result: dict[str, Any]) -> tuple[str, ...]:
    return (
        cache,
        f"{result['context']:,}",
        f"{result['kl_mean']:.2e}",
        f"{result['kl_p99']:.2e}",
        f"{result['kl_max']:.2e}",
        f"{result['top1_agreement']:.2%}",
    )


if __name__ == "__main__":
    main()
