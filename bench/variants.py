"""Variants of one engine, measured in turn: rounds, medians, ratios, and the table of them.

Knows numbers by name; neither what a variant sets nor how it is measured. Needs no jaxinfer.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Result = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Settings that have a name.

    options: of the engine. compared_to: the variant that its ratio is of.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    compared_to: str = "baseline"


def add_arguments(
    parser: argparse.ArgumentParser, variants: Sequence[Variant], *, rounds: int
) -> None:
    """The options that these benchmarks share."""
    names = [one.name for one in variants]
    known = f"some of: {', '.join(names)}"
    parser.add_argument("--model", default="smollm2-135m", help="demo name, folder or GGUF file")
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=known)
    parser.add_argument("--rounds", type=int, default=rounds, help="times that each variant runs")


def device_facts() -> dict[str, str]:
    """What the figures were measured with."""
    import jax

    return {"jax": jax.__version__, "device": jax.devices()[0].device_kind}


def choose(variants: Sequence[Variant], wanted: Iterable[str] | None) -> list[Variant]:
    """Those that are wanted and those that they are compared to, in their order; None is all."""
    if wanted is None:
        return list(variants)
    known, found, left = {one.name: one for one in variants}, set(), list(wanted)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left.append(known[name].compared_to)
    return [one for one in variants if one.name in found]


def run_rounds(
    variants: Sequence[Variant], rounds: int, measure: Callable[[Variant], dict[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """Results by variant; they take turns (A B C A B C), so that a slow minute hits all of them."""
    results: dict[str, list[dict[str, Any]]] = {one.name: [] for one in variants}
    for number in range(1, rounds + 1):
        for variant in variants:
            result = measure(variant)
            results[variant.name].append(result)
            print(f"round {number} {variant.name}: {result}", file=sys.stderr)
    return results


def medians(results: Sequence[Result]) -> dict[str, float]:
    """The median over the rounds of everything that is a number."""
    names = [name for name, value in results[0].items() if isinstance(value, int | float)]
    return {name: statistics.median(one[name] for one in results) for name in names}


def ratios(
    variant: Variant, results: Mapping[str, Sequence[Result]], number: str
) -> dict[str, Any]:
    """One number against the same one of the variant that this is compared to, round by round."""
    pairs = zip(results[variant.name], results[variant.compared_to], strict=True)
    by_round = [round(one[number] / other[number], 3) for one, other in pairs]
    return {
        "compared_to": variant.compared_to,
        "ratio": statistics.median(by_round),
        "ratio_by_round": by_round,
    }


def percentile(values: Iterable[float], percent: float) -> float:
    """The smallest value that `percent` of all do not exceed; NaN of none."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table for bench/LOG.md."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
