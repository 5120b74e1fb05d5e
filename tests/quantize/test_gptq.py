import numpy as np
import pytest

from jaxinfer.errors import ConfigError
from jaxinfer.quantize.gptq import inverse_factor, round_with_feedback
from jaxinfer.quantize.grid import CodedMatrix, Scheme, make_grid, round_to_grid, search_grid

SCHEME = Scheme(bits=4, group=32, symmetric=True, scale_dtype=np.dtype(np.float32))


def correlated(columns: int = 96, tokens: int = 400, seed: int = 0) -> np.ndarray:
    """Inputs [tokens, columns] that share a few directions, as activations do."""
    random = np.random.default_rng(seed)
    shared = random.standard_normal((tokens, 8)) @ random.standard_normal((8, columns))
    loud = np.exp(random.standard_normal(columns))
    return (shared + 0.3 * random.standard_normal((tokens, columns))) * loud


def output_error(weights: np.ndarray, made: CodedMatrix, inputs: np.ndarray) -> float:
    return float((((made.floats() - weights) @ inputs.T) ** 2).sum())


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("act_order", [True, False])
def test_outputs_are_nearer_than_with_nearest_codes(symmetric: bool, act_order: bool) -> None:
    scheme = Scheme(bits=4, group=32, symmetric=symmetric, scale_dtype=np.dtype(np.float32))
    weights = np.random.default_rng(2).standard_normal((48, 96), np.float32)
    inputs = correlated()
    gram = inputs.T @ inputs
    made = round_with_feedback(weights, gram, scheme, damping=0.01, act_order=act_order)
    plain = round_to_grid(weights, make_grid(weights, scheme))
    searched = round_to_grid(weights, search_grid(weights, scheme, gram))
    best = output_error(weights, made, inputs)
    assert best < 0.5 * output_error(weights, plain, inputs)
    assert best < 0.6 * output_error(weights, searched, inputs)


def test_it_is_the_papers_algorithm_written_plainly() -> None:
    """The inverse made whole, updated a column at a time in float64 (equations 2 and 3)."""
    random, inputs = np.random.default_rng(3), correlated(columns=160)
    weights = random.standard_normal((10, 160), np.float32)
    gram = inputs.T @ inputs
    made = round_with_feedback(weights, gram, SCHEME, damping=0.02, act_order=True)
    left = weights.astype(np.float64)
    hessian = gram + 0.02 * np.diag(gram).mean() * np.eye(160)
    remaining = list(np.argsort(-np.diag(gram), kind="stable"))
    codes = np.empty(weights.shape, np.int8)
    while remaining:
        column, rest = remaining[0], np.array(remaining)
        inverse = np.linalg.inv(hessian[np.ix_(rest, rest)])
        scale = made.grid.scales[:, column // 32].astype(np.float64)
        codes[:, column] = np.clip(np.rint(left[:, column] / scale), -8, 7)
        error = (left[:, column] - codes[:, column] * scale) / inverse[0, 0]
        left[:, rest] -= np.outer(error, inverse[0])
        remaining.pop(0)
    assert (codes != made.codes).mean() < 0.005  # ties and float32


def test_what_the_text_never_held_is_paid_for_and_damping_limits_it() -> None:
    """Inputs of few directions: errors go where none was seen, unless damping keeps them small."""
    random = np.random.default_rng(5)
    seen = random.standard_normal((400, 12)) @ random.standard_normal((12, 96))
    other = random.standard_normal((400, 96))
    weights = random.standard_normal((48, 96), np.float32)
    nearest = round_to_grid(weights, make_grid(weights, SCHEME))
    bold, careful = (
        round_with_feedback(weights, seen.T @ seen, SCHEME, damping=damping, act_order=True)
        for damping in (0.01, 0.9)
    )
    for made in (bold, careful):
        assert output_error(weights, made, seen) < 0.5 * output_error(weights, nearest, seen)
    assert output_error(weights, bold, seen) < output_error(weights, careful, seen)
    assert output_error(weights, bold, other) > 1.5 * output_error(weights, nearest, other)
    assert output_error(weights, careful, other) < 0.8 * output_error(weights, bold, other)


def test_the_factor_is_of_the_inverse() -> None:
    inputs = correlated(columns=150)
    hessian = inputs.T @ inputs + np.eye(150)
    upper = inverse_factor(hessian)
    assert np.array_equal(upper, np.triu(upper))
    assert np.allclose(upper.T @ upper @ hessian, np.eye(150), atol=1e-6)


def test_inputs_that_are_always_zero_cost_nothing() -> None:
    inputs = correlated()
    inputs[:, [3, 40]] = 0
    weights = np.random.default_rng(4).standard_normal((8, 96), np.float32)
    gram = inputs.T @ inputs
    made = round_with_feedback(weights, gram, SCHEME, damping=0.01, act_order=True)
    assert not made.codes[:, [3, 40]].any()
    nothing = round_with_feedback(weights, 0 * gram, SCHEME, damping=0.01, act_order=True)
    assert not nothing.codes.any()


def test_inputs_that_depend_on_each_other_get_more_damping() -> None:
    """Fewer tokens than columns, of very different size: next to nothing is too little."""
    random = np.random.default_rng(0)
    inputs = random.standard_normal((8, 64)) * np.logspace(0, 4, 64)
    weights = random.standard_normal((8, 64), np.float32)
    scheme, gram = SCHEME, inputs.T @ inputs
    made = round_with_feedback(weights, gram, scheme, damping=1e-9, act_order=True)
    assert np.isfinite(made.grid.scales).all()
    with pytest.raises(ConfigError, match="damping=1e-30"):
        round_with_feedback(weights, gram, scheme, damping=1e-30, act_order=True)
