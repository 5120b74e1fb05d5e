"""JOINT. `jaxinfer eval`: judges a model on a text, prints a table or JSON, draws a picture.

Knows how options are spelled; the judging is `quantize/evaluate.py`'s.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from jaxinfer.errors import ConfigError
from jaxinfer.jobs.pictures import check_picture, save_picture
from jaxinfer.jobs.quality_plots import plot_evaluation
from jaxinfer.quantize.quality import Comparison, Evaluation, Quality
from jaxinfer.quantize.texts import held_out_text, read_text


def evaluate_and_report(
    model: str,
    *,
    text: Path | None,
    against_options: Sequence[str],
    plot: Path | None,
    as_json: bool,
    console: Console,
    contexts: str | None = None,
    **options: Any,
) -> None:
    """Judges and prints.

    Args:
        against_options: NAME=VALUE each. contexts: numbers with commas between.
        options: further arguments of `evaluate_model`.

    Raises:
        JaxInferError: as `evaluate_model`.
    """
    from jaxinfer.quantize.evaluate import evaluate_model

    if plot is not None:
        check_picture(plot)
    evaluation = evaluate_model(
        model,
        text=read_text(text, held_out_text),
        contexts=None if contexts is None else read_contexts(contexts),
        against_engine=read_options(against_options) or None,
        show_progress=not as_json,
        **options,
    )
    if plot is not None:
        save_picture(plot_evaluation(evaluation), plot)
    print_evaluation(evaluation, as_json=as_json, console=console)


def read_contexts(value: str) -> tuple[int, ...]:
    """Example: "256,1024" is (256, 1024)."""
    try:
        return tuple(int(part) for part in value.split(","))
    except ValueError:
        raise ConfigError(
            f"--contexts {value}: must be numbers with commas between, such as 256,1024"
        ) from None


def read_options(entries: Sequence[str]) -> dict[str, Any]:
    """Engine options as NAME=VALUE; what is JSON is read as that.

    Example: ["kv-cache-dtype=int8", "max_num_seqs=4"] is {"kv_cache_dtype": "int8",
    "max_num_seqs": 4}.
    """
    options: dict[str, Any] = {}
    for entry in entries:
        name, sign, value = entry.partition("=")
        if not sign or not name:
            raise ConfigError(
                f"--against-option {entry}: must be NAME=VALUE, such as kv_cache_dtype=int8"
            )
        try:
            options[name.replace("-", "_")] = json.loads(value)
        except ValueError:
            options[name.replace("-", "_")] = value
    return options


def print_evaluation(evaluation: Evaluation, *, as_json: bool, console: Console) -> None:
    """Prints the figures as one JSON line or as a table."""
    if as_json:
        console.file.write(json.dumps(evaluation.as_json()) + "\n")
        return
    title = _named(evaluation.model, evaluation.engine)
    if evaluation.against is not None:
        title += f"\nagainst {_named(evaluation.against, evaluation.against_engine or {})}"
    table = Table(title=title, title_justify="left")
    # With one context that is all there is. A column each: figures fit into a narrow terminal.
    is_one = len(evaluation.contexts) == 1
    shown = evaluation.contexts if is_one else (*evaluation.contexts, evaluation.overall)
    table.add_column("context", no_wrap=True)
    for row in shown:
        table.add_column("all" if row.context is None else f"{row.context:,}", justify="right")
    cells = [_cells(evaluation.overall if is_one else row) for row in shown]
    for name in _cells(evaluation.overall):
        table.add_row(name, *(one.get(name, "") for one in cells))
    console.print(table)


def _named(model: str, engine: Mapping[str, Any]) -> str:
    options = ", ".join(f"{name}={value}" for name, value in engine.items())
    return f"{model} ({options})" if options else model


def _cells(row: Quality) -> dict[str, str]:
    cells = {
        "tokens": f"{row.num_tokens:,}",
        "nats": f"{row.nats:.4f}",
        "perplexity": f"{row.perplexity:.3f}",
    }
    return cells | (_comparison_cells(row.against) if row.against else {})


def _comparison_cells(against: Comparison) -> dict[str, str]:
    cells = {
        "against: perplexity": f"{against.perplexity:.3f}",
        "KL mean": f"{against.kl_mean:.2e}",
        "KL p99": f"{against.kl_p99:.2e}",
        "same best token": f"{against.top1_agreement:.2%}",
    }
    if against.greedy_longest is not None:
        cells["greedy run, longest"] = f"{against.greedy_longest}"
        cells["greedy run, mean"] = f"{against.greedy_mean:.1f}"
    return cells
