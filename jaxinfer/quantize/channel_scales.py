"""HOST. Scales of input channels that make a matrix easier to round: AWQ's and SmoothQuant's.

A matrix's columns are multiplied by them and its inputs divided (`layer.fold` does that in what
comes before), so outputs stay the same, and rounding hurts less. Knows matrices, no layers.
"""

from collections.abc import Callable, Sequence

import numpy as np

from jaxinfer.quantize.grid import Scheme, make_grid, round_to_grid
from jaxinfer.quantize.input_statistics import InputStatistics

_ALPHAS = tuple(step / 20 for step in range(20))
_SMALLEST = 1e-4  # of scales and of what they are made of, as in the papers' own code


def search_scales(
    matrices: Sequence[tuple[np.ndarray, Scheme]],
    inputs: InputStatistics,
    tie: Callable[[np.ndarray], np.ndarray] = lambda scales: scales,
) -> np.ndarray:
    """[in] f32 – the scales with the least output error of all matrices together, after rounding.

    Candidates are mean|x|^α and mean|x|^α / mean|w|^(1-α), α of 0 to 0.95, each with its middle at
    1; α of 0 in the first is no scaling, so nothing gets worse.

    Args:
        matrices: [out, in] each, all with these inputs, and how they will be rounded.
        tie: makes scales equal that must be.

    Source: Lin et al. 2023, "AWQ", section 3.2; the quotient is of its authors' code.
    Cost: 40 · in²·out FLOPs.
    """
    gram = inputs.gram.astype(np.float32)
    loud = np.maximum(inputs.mean, _SMALLEST)
    wide = np.maximum(_mean_sizes([weights for weights, _ in matrices], matrices[0][1]), _SMALLEST)
    best, least = np.ones(len(gram), np.float32), np.inf
    for alpha in _ALPHAS:
        for candidate in (loud**alpha, loud**alpha / wide ** (1 - alpha)):
            scales = _centered(tie(np.maximum(candidate, _SMALLEST)))
            error = sum(_output_error(*matrix, scales, gram) for matrix in matrices)
            if error < least:
                best, least = scales, error
    return best


def smoothing_scales(
    matrices: Sequence[np.ndarray], inputs: InputStatistics, strength: float
) -> np.ndarray:
    """[in] f32 – max|x|^strength / max|w|^(1-strength); 1 for an input that is always 0.

    Source: Xiao et al. 2022, "SmoothQuant", equation 4.
    """
    loudest = np.max([np.abs(weights).max(axis=0) for weights in matrices], axis=0)
    scales = np.maximum(inputs.largest, 1e-5) ** strength
    scales = scales / np.maximum(loudest, 1e-5) ** (1 - strength)
    scales = np.where((inputs.largest > 0) & (loudest > 0), scales, 1.0)
    return np.maximum(scales, 1e-5).astype(np.float32)


def _mean_sizes(matrices: Sequence[np.ndarray], scheme: Scheme) -> np.ndarray:
    """[in] – mean magnitude of each column, in each row relative to the largest of its group."""
    sizes = np.abs(np.concatenate(matrices)).reshape(-1, scheme.group)
    sizes = sizes / (sizes.max(axis=1, keepdims=True) + 1e-6)
    return sizes.reshape(sum(map(len, matrices)), -1).mean(axis=0)


def _centered(scales: np.ndarray) -> np.ndarray:
    return (scales / np.sqrt(scales.max() * scales.min())).astype(np.float32)


def _output_error(
    weights: np.ndarray, scheme: Scheme, scales: np.ndarray, gram: np.ndarray
) -> float:
    """Squared error of the outputs: the trace of E·gram·Eᵀ, E the error of the matrix."""
    scaled = weights * scales
    error = (round_to_grid(scaled, make_grid(scaled, scheme)).floats() - scaled) / scales
    return float(np.einsum("oi,oi->", error @ gram, error, dtype=np.float64))
