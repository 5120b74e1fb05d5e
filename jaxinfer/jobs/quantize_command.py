"""JOINT. `jaxinfer quantize`: makes a quantized checkpoint and says what it has become."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from jaxinfer.errors import ConfigError
from jaxinfer.jobs.info import section_table
from jaxinfer.quantize.make import QuantizedModel, quantize_model


def quantize_and_report(
    model: str, out: Path, *, recipe: dict[str, Any], as_json: bool, **options: Any
) -> None:
    """Makes and prints.

    Args:
        recipe: fields of `Recipe` that were given, `group_size` as text.
        options: other arguments of `quantize_model`.
    """
    if "group_size" in recipe:
        recipe = recipe | {"group_size": _group_size(recipe["group_size"])}
    made = quantize_model(model, out, show_progress=not as_json, **options, **recipe)
    print_made(made, as_json=as_json, console=Console(highlight=False))


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


def _group_size(text: str) -> int | str:
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise ConfigError(
            f"--group-size {text}: must be auto, -1 (a whole row) or a number of columns"
        ) from None
