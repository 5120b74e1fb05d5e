"""HOST. What judging a model found, as records: likelihood of a text, distance to another model.

Makes them of numbers by judged row; knows no models.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from jaxinfer.quantize.passages import Passages


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Against the other model. nats, perplexity: the other's own. kl_mean, kl_p99, kl_max: of
    KL(other ‖ model) over the judged tokens, in nats. top1_agreement: share of them with the same
    likeliest token. greedy_longest, greedy_mean: tokens for which both go on alike from the same
    beginning, of at most greedy_tokens; None where no runs were asked for."""

    nats: float
    perplexity: float
    kl_mean: float
    kl_p99: float
    kl_max: float
    top1_agreement: float
    greedy_longest: int | None = None
    greedy_mean: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """context: judged are the tokens before that length; None is all of them. nats: minus the mean
    log-probability of a token; perplexity: its exponential."""

    context: int | None
    num_tokens: int
    nats: float
    perplexity: float
    against: Comparison | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """contexts: a row each. overall: all judged tokens. The rest is what was asked."""

    model: str
    engine: Mapping[str, Any]
    against: str | None
    against_engine: Mapping[str, Any] | None
    num_passages: int
    judged: int
    greedy_tokens: int
    contexts: tuple[Quality, ...]
    overall: Quality

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainstRows:
    """By judged row: nats [rows] f64 – the other model's; kl [rows] f64; same [rows] bool."""

    nats: np.ndarray
    kl: np.ndarray
    same: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRows:
    """By judged row, passages in turn: nats [rows] f64 – of the model."""

    nats: np.ndarray
    against: AgainstRows | None = None


def qualities(
    rows: JudgedRows, passages: Passages, agreed: np.ndarray | None
) -> tuple[tuple[Quality, ...], Quality]:
    """(a row for each context, all of them together).

    Args:
        agreed: [contexts, passages] – tokens for which the greedy runs agree.
    """
    belongs = passages.row_contexts()
    each = [
        _quality(rows, belongs == context, context, None if agreed is None else agreed[number])
        for number, context in enumerate(passages.contexts)
    ]
    return tuple(each), _quality(rows, np.ones(belongs.shape, bool), None, agreed)


def _quality(
    rows: JudgedRows, chosen: np.ndarray, context: int | None, agreed: np.ndarray | None
) -> Quality:
    nats = float(rows.nats[chosen].mean())
    return Quality(
        context=context,
        num_tokens=int(chosen.sum()),
        nats=nats,
        perplexity=float(np.exp(nats)),
        against=_comparison(rows.against, chosen, agreed) if rows.against else None,
    )


def _comparison(rows: AgainstRows, chosen: np.ndarray, agreed: np.ndarray | None) -> Comparison:
    nats, kl = float(rows.nats[chosen].mean()), rows.kl[chosen]
    return Comparison(
        nats=nats,
        perplexity=float(np.exp(nats)),
        kl_mean=float(kl.mean()),
        kl_p99=float(np.percentile(kl, 99)),
        kl_max=float(kl.max()),
        top1_agreement=float(rows.same[chosen].mean()),
        greedy_longest=None if agreed is None else int(agreed.max()),
        greedy_mean=None if agreed is None else float(agreed.mean()),
    )


def num_alike(one: list[int], other: list[int]) -> int:
    """Tokens at the beginning that two runs have in common."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
