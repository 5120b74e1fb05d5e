"""JOINT. `jaxinfer quantize MODEL --sensitivity`: ranks, prints a table or JSON, draws a picture.

Knows how options are spelled; the ranking is `quantize/sensitivity.py`'s.
"""

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from jaxinfer.jobs.pictures import check_picture, save_picture
from jaxinfer.jobs.quality_plots import plot_ranking
from jaxinfer.quantize.ranking import Ranking
from jaxinfer.quantize.texts import held_out_text, read_text

_SHOWN_ROWS = 40


def rank_and_report(
    model: str,
    *,
    text: Path | None,
    plot: Path | None,
    is_printed: bool,
    as_json: bool,
    console: Console,
    **options: Any,
) -> Ranking:
    """Ranks and prints.

    Args:
        is_printed: whether the table is wanted; a picture is drawn in any case.
        options: further arguments of `rank_sensitivity`.

    Raises:
        JaxInferError: as `rank_sensitivity`.
    """
    from jaxinfer.quantize.sensitivity import rank_sensitivity

    if plot is not None:
        check_picture(plot, option="--sensitivity-plot")
    ranking = rank_sensitivity(
        model,
        text=read_text(text, held_out_text, option="--sensitivity-text"),
        show_progress=not as_json,
        **options,
    )
    if plot is not None:
        save_picture(plot_ranking(ranking), plot)
    if is_printed:
        print_ranking(ranking, as_json=as_json, console=console)
    return ranking


def print_ranking(ranking: Ranking, *, as_json: bool, console: Console) -> None:
    """Prints the worst parts first, as one JSON line or as a table."""
    rows = ranking.worst_first()
    if as_json:
        console.file.write(json.dumps(ranking.as_json()) + "\n")
        return
    group = "" if ranking.group_size is None else f", groups of {ranking.group_size}"
    table = Table(
        title=f"{ranking.model}: one {ranking.part} at a time in {ranking.bits} bits{group}",
        title_justify="left",
    )
    table.add_column(justify="right")
    table.add_column(ranking.part, overflow="fold")
    for name in ("parameters", "KL mean", "KL max", "same best token", "nats"):
        table.add_column(name, justify="right")
    for place, row in enumerate(rows[:_SHOWN_ROWS], 1):
        table.add_row(
            f"{place}",
            row.name,
            f"{row.num_elements:,}",
            f"{row.kl_mean:.2e}",
            f"{row.kl_max:.2e}",
            f"{row.top1_agreement:.2%}",
            f"{row.nats:.4f}",
        )
    if len(rows) > _SHOWN_ROWS:
        table.caption = f"{len(rows) - _SHOWN_ROWS} more; --json prints all"
    console.print(table)
