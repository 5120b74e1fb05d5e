"""HOST. How far two models' predictions are apart, from their logits, in float64.

Rows are taken a few at a time: float64 of a whole vocabulary is large. Knows arrays only.
"""

from collections.abc import Iterator

import numpy as np

_BLOCK_ELEMENTS = 2**21


def next_token_nats(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Minus the log-probability of the token that came.

    Args:
        logits: [rows, V] f32. targets: [rows] – ids.

    Returns:
        [rows] f64, in nats; NaN where a row holds NaN or +inf.
    """
    result = np.empty(len(logits))
    for part in _blocks(logits):
        rows = logits[part].astype(np.float64)
        _, normalizers = _softmax_parts(rows)
        result[part] = normalizers - rows[np.arange(len(rows)), targets[part]]
    return result


def divergences(reference: np.ndarray, judged: np.ndarray) -> np.ndarray:
    """KL(reference ‖ judged) of each row: what is lost in predicting with the second.

    Args:
        reference, judged: [rows, V] f32 – finite logits.

    Returns:
        [rows] f64, in nats, at least 0.
    """
    result = np.empty(len(reference))
    for part in _blocks(reference):
        one, other = (rows[part].astype(np.float64) for rows in (reference, judged))
        weights, normalizers = _softmax_parts(one)
        mean_gap = (weights * (one - other)).sum(axis=-1) / weights.sum(axis=-1)
        result[part] = mean_gap - normalizers + _softmax_parts(other)[1]
    return np.maximum(result, 0)  # equal rows may come out some 1e-16 below


def same_best(reference: np.ndarray, judged: np.ndarray) -> np.ndarray:
    """[rows] bool – whether both find the same token likeliest (of equals the first)."""
    return reference.argmax(axis=-1) == judged.argmax(axis=-1)


def _softmax_parts(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """([rows, V] weights that softmax would divide by their sum, [rows] log of the sum of exp)."""
    largest = rows.max(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore"):  # inf - inf: said by the caller, who sees the NaN
        weights = np.exp(rows - largest)
        return weights, np.log(weights.sum(axis=-1)) + largest[:, 0]


def _blocks(rows: np.ndarray) -> Iterator[slice]:
    step = max(1, _BLOCK_ELEMENTS // max(1, rows.shape[-1]))
    return (slice(first, first + step) for first in range(0, len(rows), step))
