"""What one GPU gives: ops checked against float64 and timed, XLA beside Pallas, and whole steps.

`python bench/gpu/run.py` on an H200 takes less than eight minutes and writes JSON and a Markdown
table into bench/results/. `--tiny` runs every part with small shapes, on a CPU too (kernels are
simulated there): it shows that the script works, its times say nothing.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

# Warpgroups of a simulated kernel run side by side: with too few threads they wait for ever.
if len(os.sched_getaffinity(0)) < 4:
    os.environ.setdefault("NPROC", "4")

import jax  # noqa: E402  (reads the number of threads)

_HERE = Path(__file__).parent
sys.path[:0] = [str(_HERE), str(_HERE.parent), str(_HERE.parents[1])]
from layer_ops import product_rows, residual_rows, write_rows  # noqa: E402  (likewise)
from measure import Clock, Row, Setting, as_json  # noqa: E402  (neighbours of a script)
from ops import attention_rows, measure_machine, norm_rows, quant_rows  # noqa: E402
from steps import step_rows  # noqa: E402
from variants import device_facts, markdown_table  # noqa: E402

SECTIONS: dict[str, Callable[[Setting], Iterable[Row]]] = {
    "norm": norm_rows,
    "decode": lambda setting: attention_rows(setting, "decode"),
    "steps": step_rows,
    "prefill": lambda setting: attention_rows(setting, "prefill"),
    "residual": residual_rows,
    "write": write_rows,
    "products": product_rows,
    "quant": quant_rows,
}
_SHARES = {"norm": 0.1, "decode": 0.25, "steps": 0.6, "prefill": 0.7, "residual": 0.72,
           "write": 0.76, "products": 0.84, "quant": 1.0}  # fmt: skip


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tiny", action="store_true", help="small shapes, kernels simulated")
    parser.add_argument("--seconds", type=float, default=450, help="no new case after that")
    parser.add_argument("--only", nargs="*", choices=SECTIONS, help="parts; all by default")
    parser.add_argument("--seed", type=int, help="of the data; fresh by default")
    parser.add_argument("--output", type=Path, default=_HERE.parent / "results")
    return parser.parse_args(arguments)


def measure(options: argparse.Namespace) -> list[Row]:
    """Every row, as soon as it is measured on standard error too."""
    clock = Clock(seconds=options.seconds)
    machine, rows = measure_machine(options.tiny)
    setting = Setting(
        kernels=("reference", "simulated" if options.tiny else "mosaic"),
        is_tiny=options.tiny,
        clock=clock,
        seed=time.time_ns() % 2**31 if options.seed is None else options.seed,
        machine=machine,
    )
    for name in options.only or SECTIONS:
        # Each part has its share of the time, so that a slow one leaves some to the others.
        until = Clock(seconds=options.seconds * _SHARES[name], start=clock.start)
        for row in SECTIONS[name](replace(setting, clock=until)):
            rows.append(row)
            print(_line(row), file=sys.stderr, flush=True)
    return rows


def report(rows: Sequence[Row], facts: dict[str, str], seconds: float) -> str:
    """The Markdown page."""
    lines = [_line(row) for row in rows]
    header = ("part", "case", "by", "error", "ms", "rate", "of the machine's", "")
    bad = [row for row in rows if not row.is_good]
    verdict = f"{len(bad)} of {len(rows)} rows are wrong" if bad else "every row is right"
    facts_text = ", ".join(f"{name} {value}" for name, value in facts.items())
    table = markdown_table(header, [line.split("\t") for line in lines])
    return f"{facts_text}; {seconds:.0f} s; {verdict}.\n\n{table}\n"


def _line(row: Row) -> str:
    cells = (
        row.section,
        row.case,
        row.implementation,
        "–" if row.error is None else f"{row.error:.1e}",
        "–" if row.ms is None else f"{row.ms:.3f}",
        f"{row.rate:,.1f} {row.unit}" if row.rate else "–",
        f"{row.share:.0%}" if row.share else "–",
        row.note,
    )
    return "\t".join(cells)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    start = time.monotonic()
    rows, facts = measure(options), device_facts()
    seconds = time.monotonic() - start
    options.output.mkdir(parents=True, exist_ok=True)
    name = options.output / f"{'tiny' if options.tiny else 'gpu'}-jax{jax.__version__}"
    whole = {**facts, "seconds": seconds, "rows": as_json(rows)}
    name.with_suffix(".json").write_text(json.dumps(whole, indent=1), "utf-8")
    page = report(rows, facts, seconds)
    name.with_suffix(".md").write_text(page, "utf-8")
    print(page)
    return 0 if all(row.is_good for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
