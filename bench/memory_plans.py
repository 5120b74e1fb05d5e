"""Memory plans of well-known models on an H200, compiled from their config.json alone.

`python bench/memory_plans.py [NAME ...]`

Every plan becomes a JSON record (bench/data/memory_plans), and the records become
docs/memory_plans.md. A model that has a record is left out, unless it is named: what was
interrupted goes on where it was. Needs the aot extra, no GPU and no weights.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CONFIGS, RECORDS = ROOT / "tests/data/configs", ROOT / "bench/data/memory_plans"
PAGE = ROOT / "docs/memory_plans.md"
TARGET = "h200"
SETTINGS: dict[str, Any] = {"max_num_batched_tokens": 128}  # fewer programs to compile
INT4: dict[str, Any] = {"quantization": "int4"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama-3.1-8B": ("Llama-3.1-8B", {}),
    "Mistral-7B": ("Mistral-7B-v0.1", {}),
    "Qwen2.5-7B": ("Qwen2.5-7B", {}),
    "Qwen2.5-32B": ("Qwen2.5-32B", {}),
    "Qwen3-8B": ("Qwen3-8B", {}),
    "Qwen3-32B": ("Qwen3-32B", {}),
    "Qwen3-32B int4": ("Qwen3-32B", INT4),
    "Gemma-7B": ("gemma-7b", {}),
    "Gemma-2-9B": ("gemma-2-9b", {}),
    "Gemma-3-12B": ("gemma-3-12b", {}),
    "Phi-3-mini": ("Phi-3-mini-4k", {}),
    "Phi-3-medium": ("Phi-3-medium-4k", {}),
    "OLMo-2-7B": ("OLMo-2-7B", {}),
    "SmolLM3-3B": ("SmolLM3-3B", {}),
    "Mixtral-8x7B": ("Mixtral-8x7B-v0.1", {}),
    "Qwen3-30B-A3B": ("Qwen3-30B-A3B", {}),
    "gpt-oss-20b": ("gpt-oss-20b", {}),
}
INTRODUCTION = """# Memory plans of well-known models

Written by `python bench/memory_plans.py` from records of `jaxinfer plan`: each model's programs
were compiled for an H200 (141 GB) from the config.json in `tests/data/configs`, without a GPU and
without weights. A test fails when this page is stale, or when what arithmetic gives has changed.
Settings are the defaults (64 slots, contexts up to 8,192 tokens or what the model was trained for,
bfloat16 where nothing else is said), but prefill takes one chunk of 128 tokens a step.

[Planning for a GPU](plan.md) says what the figures mean: *must move* is every weight, the live keys
and values and the logits once; *moves* is counted from the compiled decode step; *floor* is the
first at 4.8 TB/s. A step that reads pages in a loop (`reference`) cannot be counted.
"""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CASES)}")
    return parser.parse_args(arguments)


def record_of(name: str) -> Path:
    """The file of a case's record."""
    return RECORDS / f"{name.replace(' ', '-')}.json"


def wanted(names: Sequence[str]) -> list[str]:
    """The named cases, or those without a record."""
    unknown = [name for name in names if name not in CASES]
    if unknown:
        raise SystemExit(f"no such case: {', '.join(unknown)}; there are: {', '.join(CASES)}")
    return list(names) or [name for name in CASES if not record_of(name).is_file()]


def plan_case(name: str) -> dict[str, Any]:
    """The plan of one case, compiled, as a record."""
    import jax

    from jaxinfer.jobs.plan_process import plan_apart

    model, options = CASES[name]
    plan = plan_apart(str(CONFIGS / model), TARGET, **SETTINGS, **options).as_json()
    plan["model"] = model
    for program in plan["programs"]:
        program.pop("compile_seconds", None)  # of whatever machine this is, however busy
    return {"name": name, "jax": jax.__version__, "options": options, "plan": plan}


def read_records() -> list[dict[str, Any]]:
    """All records, in the order of the cases."""
    paths = [record_of(name) for name in CASES]
    return [json.loads(path.read_text("utf-8")) for path in paths if path.is_file()]


def render(records: Sequence[dict[str, Any]]) -> str:
    """The whole page."""
    parts = [INTRODUCTION, "## What is held\n", _held(records)]
    parts += ["## A decode step of all slots at a quarter of the context\n", _moved(records)]
    parts += ["## Kernels written for the GPU\n", _kernels(records)]
    missing = [name for name in CASES if name not in {record["name"] for record in records}]
    if missing:
        parts.append(f"Not compiled yet: {', '.join(missing)}.\n")
    return "\n".join(parts)


def _held(records: Iterable[dict[str, Any]]) -> str:
    head = ("model", "weights", "KV pool", "tokens it holds", "temporaries", "spare", "fits")
    rows = []
    for record in records:
        plan = record["plan"]
        sizes = (plan["temporary_bytes"], plan["spare_bytes"])
        rows.append(
            (
                record["name"],
                _gib(plan["weights_bytes"]),
                _gib(plan["cache_bytes"]),
                f"{plan['cached_tokens']:,}",
                *(_gib(size) for size in sizes),
                "yes" if plan["fits"] else "no",
            )
        )
    return _table(head, rows)


def _moved(records: Iterable[dict[str, Any]]) -> str:
    head = ("model", "rows × context", "must move", "moves", "ratio", "floor", "most tokens/s")
    rows = []
    for record in records:
        plan = record["plan"]
        load = plan["decode"][-2]
        moved, needed = load["moved_bytes"], load["needed_bytes"]
        rows.append(
            (
                record["name"],
                f"{load['num_rows']} × {load['context_tokens']:,}",
                _gib(needed),
                "–" if moved is None else _gib(moved),
                "–" if moved is None else f"{moved / needed:.2f}",
                f"{load['floor_s'] * 1e3:.2f} ms",
                f"{load['tokens_per_s']:,.0f}",
            )
        )
    return _table(head, rows)


def _kernels(records: Iterable[dict[str, Any]]) -> str:
    head = ("model", "without a kernel", "kernels a layer", "registers", "spills")
    rows = []
    for record in records:
        plan = record["plan"]
        decode = [one for one in plan["programs"] if one["name"].startswith("decode_step")][-1]
        kernels, fallbacks = plan["kernels"], plan["fallbacks"].items()
        registers = [one["registers"] for one in kernels]
        rows.append(
            (
                record["name"],
                "; ".join(f"{op}: {reason}" for op, reason in fallbacks) or "-",
                str(decode["kernels_a_layer"]),
                f"{min(registers)}–{max(registers)}" if registers else "-",
                f"{sum(one['spill_bytes'] for one in kernels)}",
            )
        )
    return _table(head, rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _gib(count: float) -> str:
    return f"{count / 2**30:,.2f} GiB"


def main(arguments: Sequence[str] | None = None) -> None:
    for name in wanted(parse(arguments).names):
        record = plan_case(name)
        RECORDS.mkdir(parents=True, exist_ok=True)
        record_of(name).write_text(json.dumps(record) + "\n", encoding="utf-8")
        print(f"{name}: fits={record['plan']['fits']}", flush=True)
    PAGE.write_text(render(read_records()), encoding="utf-8")


if __name__ == "__main__":
    main()
