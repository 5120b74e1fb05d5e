"""HOST. Pictures of what judging a model found, through matplotlib (extra `plot`).

Knows the records of `quantize`; runs nothing.
"""

from collections.abc import Sequence
from typing import Any

from jaxinfer.jobs.pictures import new_figure
from jaxinfer.quantize.quality import Evaluation, Quality
from jaxinfer.quantize.ranking import Ranking

_MOST_NAMES = 25


def plot_evaluation(evaluation: Evaluation) -> Any:
    """A matplotlib figure: perplexity by context, and the distance to the other model.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    rows, has_other = evaluation.contexts, evaluation.against is not None
    figure, axes = new_figure(columns=3 if has_other else 1)
    _lines(axes[0], rows, [("perplexity", evaluation.model)], "perplexity")
    if has_other:
        others = [row.against for row in rows]
        label = f"{evaluation.against} (against)"
        _lines(axes[0], rows, [("perplexity", label)], "perplexity", others)
        kinds = [("kl_mean", "mean"), ("kl_p99", "99th percentile")]
        _lines(axes[1], rows, kinds, "KL, nats", others)
        axes[1].set_yscale("log", nonpositive="mask")
        _lines(axes[2], rows, [("top1_agreement", "same best token")], "share of tokens", others)
    return figure


def plot_ranking(ranking: Ranking) -> Any:
    """A matplotlib figure: the KL that rounding each part alone costs, in the model's order, and
    falling.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    figure, (in_order, falling) = new_figure(columns=2, width=6, height=5)
    named = {row.name: row.kl_mean for row in ranking.rows}
    in_order.bar(range(len(named)), list(named.values()))
    in_order.set_xlabel(f"{ranking.part}, in the model's order")
    in_order.set_ylabel(f"KL of that {ranking.part} in {ranking.bits} bits, nats")
    worst = [row.name for row in ranking.worst_first()][:_MOST_NAMES]
    falling.barh(worst, [named[name] for name in worst])
    falling.invert_yaxis()
    falling.tick_params(axis="y", labelsize="small")
    falling.set_xlabel("KL, nats")
    return figure


def _lines(
    axis: Any,
    rows: Sequence[Quality],
    fields: Sequence[tuple[str, str]],
    name: str,
    values: Sequence[Any] | None = None,
) -> None:
    """A line a field over the contexts; of `values`, or of the rows themselves."""
    contexts = [row.context for row in rows]
    for field, label in fields:
        heights = [getattr(one, field) for one in values or rows]
        axis.plot(contexts, heights, marker="o", label=label)
    axis.set_xscale("log", base=2)
    axis.set_xticks(contexts, [f"{context:,}" for context in contexts], minor=False)
    axis.set_xlabel("context, tokens")
    axis.set_ylabel(name)
    axis.legend()
