"""Sampling in plain NumPy and float64, one row at a time: what the device must equal."""

from collections.abc import Mapping, Sequence

import numpy as np


def filtered(
    logits: np.ndarray,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> np.ndarray:
    """Logits less the best, over the temperature; -inf where a token may not be drawn."""
    scaled = (logits.astype(np.float64) - np.max(logits)) / temperature
    if min_p > 0:
        scaled[scaled < np.log(min_p)] = -np.inf
    if top_k > 0:
        scaled[scaled < np.sort(scaled)[::-1][min(top_k, scaled.size) - 1]] = -np.inf
    if top_p < 1:
        law = softmax(scaled)
        for level in np.unique(scaled)[::-1]:  # ties stay together
            if law[scaled >= level].sum() >= top_p:
                scaled[scaled < level] = -np.inf
                break
    return scaled


def softmax(scores: np.ndarray) -> np.ndarray:
    """Probabilities of scores, some of which may be -inf."""
    weights = np.exp(scores - np.max(scores))
    return weights / weights.sum()


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities in float64, over the last axis."""
    wide = logits.astype(np.float64)
    shifted = wide - wide.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def chi_square(counts: np.ndarray, law: np.ndarray) -> tuple[float, float]:
    """Pearson's statistic of counts against a law, and the bound that chance passes 1e-6 of times.

    The bound is Wilson and Hilferty's: d (1 - 2/9d + z sqrt(2/9d))^3 with z = 4.75.
    """
    assert counts[law == 0].sum() == 0, "a token of probability zero was drawn"
    expected = counts.sum() * law[law > 0]
    degrees = max(expected.size - 1, 1)
    spread = 2 / (9 * degrees)
    bound = degrees * (1 - spread + 4.75 * spread**0.5) ** 3
    return float(((counts[law > 0] - expected) ** 2 / expected).sum()), bound


def limited(
    logits: np.ndarray,
    *,
    prompt_ids: Sequence[int] = (0,),
    output_ids: Sequence[int] = (),
    end_ids: Sequence[int] = (),
    bad_word_ids: Sequence[Sequence[int]] = (),
    allowed_token_ids: Sequence[int] | None = None,
    logit_bias: Mapping[int, float] | None = None,
    min_tokens: int = 0,
    repetition_penalty: float = 1.0,
    frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0,
) -> np.ndarray:
    """Logits after a request's limits; a ban that would leave nothing is passed over."""
    scores, before = logits.astype(np.float64), [*prompt_ids, *output_ids]
    every = set(range(scores.size))
    scores = _without(
        scores, every - set(every if allowed_token_ids is None else allowed_token_ids)
    )
    ended = [w for w in bad_word_ids if len(w) == 1 or before[-len(w) + 1 :] == list(w[:-1])]
    scores = _without(scores, {word[-1] for word in ended})
    for token, bias in (logit_bias or {}).items():
        scores[token] += bias
    if len(output_ids) < min_tokens:
        scores = _without(scores, set(end_ids))
    for token in set(before):
        scores[token] *= repetition_penalty if scores[token] <= 0 else 1 / repetition_penalty
    for token in output_ids:
        scores[token] -= frequency_penalty
    for token in set(output_ids):
        scores[token] -= presence_penalty
    return scores


def _without(scores: np.ndarray, banned: set[int]) -> np.ndarray:
    left = scores.copy()
    left[list(banned)] = -np.inf
    return left if np.max(left) > -np.inf else scores
