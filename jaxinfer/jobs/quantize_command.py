"""JOINT. `jaxinfer quantize` and `convert`: make a checkpoint and say what it has become.

Ranks its layers before, where that is asked for or `--protect` is a number.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from jaxinfer.errors import ConfigError
from jaxinfer.jobs.info import section_table
from jaxinfer.jobs.sensitivity_command import rank_and_report
from jaxinfer.quantize.convert import convert_model
from jaxinfer.quantize.make import QuantizedModel, quantize_model
from jaxinfer.quantize.ranking import Ranking
from jaxinfer.quantize.recipe import METHODS


def quantize_and_report(
    model: str,
    out: Path | None,
    *,
    method: str | None,
    recipe: dict[str, Any],
    ranking: dict[str, Any],
    protect: Sequence[str],
    as_json: bool,
    **options: Any,
) -> None:
    """Ranks layers where that is wanted, makes, and prints.

    Args:
        recipe: fields of `Recipe` that were given, `group_size` as text.
        ranking: of `RANKING_OPTIONS`, those that were given.
        protect: names, or one number: that many of the most sensitive layers.
        options: other arguments of `quantize_model`.
    """
    if "group_size" in recipe:
        recipe = recipe | {"group_size": _group_size(recipe["group_size"])}
    names, count = read_protected(protect)
    wants_table = ranking.pop("sensitivity", False)
    console = Console(highlight=False)
    if out is None and not wants_table:
        raise ConfigError(
            "OUT is missing: name the folder to make, or add --sensitivity to only rank the layers"
        )
    if out is not None and method is None:
        raise ConfigError(f"--method is missing: one of {', '.join(METHODS)}")
    if wants_table or count:
        bits = recipe.get("bits", 8 if method == "smoothquant" else 4)
        group = recipe.get("group_size", "auto")
        found = _rank(model, bits, group, ranking, wants_table, as_json, console)
        names += found.worst(count)
    elif ranking:
        raise ConfigError(
            f"{', '.join(sorted(ranking))}: of a ranking, which nothing asks for; add "
            "--sensitivity, or --protect with a number"
        )
    if out is not None:
        options["method"] = method
        made = quantize_model(
            model, out, protect=names, show_progress=not as_json, **options, **recipe
        )
        print_made(made, as_json=as_json, console=console)


def read_protected(values: Sequence[str]) -> tuple[tuple[str, ...], int]:
    """Example: ["model.layers.0", "2"] is (("model.layers.0",), 2)."""
    numbers = [value for value in values if value.isdecimal()]
    if len(numbers) > 1:
        raise ConfigError(f"--protect {' and '.join(numbers)}: give one number of layers")
    return tuple(one for one in values if one not in numbers), int(*numbers)


def _rank(
    model: str,
    bits: int,
    group: int | str,
    ranking: dict[str, Any],
    is_printed: bool,
    as_json: bool,
    console: Console,
) -> Ranking:
    """What rounding each layer alone costs, in the scheme of the recipe."""
    text, plot = (ranking.get(f"sensitivity_{name}") for name in ("text", "plot"))
    return rank_and_report(
        model,
        bits=bits,
        group_size=None if group == "auto" else group,
        part=ranking.get("sensitivity_by", "layer"),
        text=Path(text) if text else None,
        file=ranking.get("sensitivity_file"),
        plot=Path(plot) if plot else None,
        is_printed=is_printed,
        as_json=as_json,
        console=console,
    )


def print_made(made: QuantizedModel, *, as_json: bool, console: Console) -> None:
    """Shows a result."""
    if as_json:
        console.file.write(json.dumps(asdict(made), default=str) + "\n")
        return
    recipe = made.recipe
    group = {"auto": "auto", -1: "a row"}.get(recipe.group_size, f"{recipe.group_size} columns")
    sign = "symmetric" if recipe.symmetric else "asymmetric"
    section = {
        "folder": str(made.path),
        "method": f"{recipe.method}, {recipe.bits} bits, {sign}, a scale for: {group}",
        "rounded_matrices": made.num_matrices,
        "float_matrices": ", ".join(made.floats) or None,
        "source_bytes": made.source_bytes,
        "weight_bytes": made.bytes,
        "seconds": f"{made.seconds:.1f}",
    }
    console.print(section_table("quantized", section))


def convert_and_report(model: str, out: Path, *, overwrite: bool, as_json: bool) -> None:
    """Writes a native checkpoint, and prints."""
    made = convert_model(model, out, overwrite=overwrite, show_progress=not as_json)
    console = Console(highlight=False)
    if as_json:
        console.file.write(json.dumps(asdict(made), default=str) + "\n")
        return
    section = {
        "folder": str(made.path),
        "quantization": made.quantization,
        "source_bytes": made.source_bytes,
        "weight_bytes": made.bytes,
        "seconds": f"{made.seconds:.1f}",
    }
    console.print(section_table("converted", section))


def _group_size(text: str) -> int | str:
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise ConfigError(
            f"--group-size {text}: must be auto, -1 (a whole row) or a number of columns"
        ) from None
