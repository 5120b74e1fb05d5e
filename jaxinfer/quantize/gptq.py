"""HOST. GPTQ: a matrix is rounded column by column, each error made good by the columns to come.

Linear algebra in NumPy on the host: a matrix of a small model takes milliseconds, one of an 8B
model seconds. Knows matrices and their inputs, no layers.
"""

import numpy as np

from jaxinfer.errors import ConfigError
from jaxinfer.quantize.grid import CodedMatrix, Grid, Scheme, search_grid

_BLOCK = 128  # columns whose errors are applied at once to the columns right of them
_INVERTED_AT_ONCE = 64


def round_with_feedback(
    weights: np.ndarray,
    gram: np.ndarray,
    scheme: Scheme,
    *,
    damping: float,
    act_order: bool,
) -> CodedMatrix:
    """Codes whose outputs for inputs like those seen are nearer to the matrix's than nearest codes.

    Grids of all groups are fixed first, so that act-order leaves columns in their order and needs
    no group numbers in the file.

    Args:
        weights: [out, in] f32.
        gram: [in, in] f64 – inputs times inputs, summed over tokens.
        damping: share of the mean diagonal that is added to it.
        act_order: columns by falling importance, instead of from left to right.

    Raises:
        ConfigError: inputs that are dependent whatever is added to the diagonal.

    Source: Frantar et al. 2022, "GPTQ", algorithm 1; grids by AWQ's clip search.
    Cost: in²·out + 2·in³ FLOPs.
    """
    weights = np.where(np.diag(gram) <= 0, np.float32(0), weights)  # of inputs that were always 0
    order = np.argsort(-np.diag(gram), kind="stable") if act_order else np.arange(len(gram))
    feedback = _feedback(gram[np.ix_(order, order)], damping)
    grid = search_grid(weights, scheme, gram)
    codes = np.empty(weights.shape, np.int8)
    codes[:, order] = _walk(weights.T[order], feedback, grid, order).T
    return CodedMatrix(grid=grid, codes=codes)


def _feedback(gram: np.ndarray, damping: float) -> np.ndarray:
    """[in, in] f32 – how a column's error goes to those behind it.

    Inputs that are nearly dependent need more damping than was asked for: ten times as much, until
    there is an inverse.
    """
    for factor in (1, 10, 100, 1000):
        try:
            return inverse_factor(_damped(gram, factor * damping)).astype(np.float32)
        except np.linalg.LinAlgError:
            continue
    raise ConfigError(
        f"damping={damping}: the inputs of a matrix of {len(gram)} columns are so nearly dependent "
        "that a thousand times as much is too little; pass damping=0.01"
    )


def _damped(gram: np.ndarray, damping: float) -> np.ndarray:
    """The Hessian up to a factor; inputs that were never other than 0 count for themselves."""
    hessian = gram.astype(np.float64)
    dead = np.diag(hessian) <= 0
    hessian[dead, dead] = 1.0
    diagonal = np.diag(hessian)
    hessian[np.diag_indices_from(hessian)] += damping * diagonal[~dead].mean() if any(~dead) else 1
    return hessian


def inverse_factor(hessian: np.ndarray) -> np.ndarray:
    """The upper triangle U with Uᵀ·U = hessian⁻¹.

    With rows and columns reversed, Cholesky's lower factor becomes an upper one: hessian = R·Rᵀ,
    so U = R⁻¹, and the inverse itself is never made.
    """
    upper = np.linalg.cholesky(hessian[::-1, ::-1])[::-1, ::-1]
    return _inverted(np.ascontiguousarray(upper))


def _inverted(upper: np.ndarray) -> np.ndarray:
    """The inverse of an upper triangle, by halves: [A B; 0 C]⁻¹ = [A⁻¹ -A⁻¹·B·C⁻¹; 0 C⁻¹]."""
    size = len(upper)
    if size <= _INVERTED_AT_ONCE:
        return np.triu(np.linalg.inv(upper))
    half = size // 2
    inverse = np.zeros_like(upper)
    inverse[:half, :half] = _inverted(upper[:half, :half])
    inverse[half:, half:] = _inverted(upper[half:, half:])
    inverse[:half, half:] = -inverse[:half, :half] @ upper[:half, half:] @ inverse[half:, half:]
    return inverse


def _walk(columns: np.ndarray, feedback: np.ndarray, grid: Grid, order: np.ndarray) -> np.ndarray:
    """[in, out] i8 – codes of the columns [in, out], which are used up."""
    lowest, highest = np.float32(grid.scheme.lowest), np.float32(grid.scheme.highest)
    codes = np.empty(columns.shape, np.int8)
    for start in range(0, len(columns), _BLOCK):
        block, own = columns[start : start + _BLOCK], feedback[start : start + _BLOCK]
        scales, zeros = grid.columns(order[start : start + _BLOCK])
        errors = np.empty_like(block)
        for place, column in enumerate(block):
            code = np.rint(column / scales[place]) + zeros[place]
            np.clip(code, lowest, highest, out=code)
            codes[start + place] = code
            error = column - (code - zeros[place]) * scales[place]
            error /= own[place, start + place]
            errors[place] = error
            later = own[place, start + place + 1 : start + len(block)]
            block[place + 1 :] -= np.multiply.outer(later, error)
        rest = own[:, start + len(block) :]
        columns[start + len(block) :] -= rest.T @ errors
    return codes
