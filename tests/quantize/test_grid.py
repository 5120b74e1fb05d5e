import ml_dtypes
import numpy as np
import pytest

from jaxinfer.quantize.grid import Scheme, make_grid, round_to_grid, search_grid

BF16 = np.dtype(ml_dtypes.bfloat16)


def scheme(bits: int = 4, group: int = 4, symmetric: bool = True, dtype: object = "f4") -> Scheme:
    return Scheme(bits=bits, group=group, symmetric=symmetric, scale_dtype=np.dtype(dtype))  # type: ignore[arg-type]


def test_a_symmetric_range_has_half_a_step_more_than_its_largest_code() -> None:
    weights = np.array([[3, -7.5, 0, 1], [0, 0, 0, 0]], np.float32)
    made = round_to_grid(weights, make_grid(weights, scheme()))
    assert made.grid.scales.tolist() == [[1.0], [1.0]]
    assert made.codes.tolist() == [[3, -8, 0, 1], [0, 0, 0, 0]]
    assert made.floats()[0].tolist() == [3, -8, 0, 1]


def test_an_asymmetric_range_holds_zero() -> None:
    weights = np.array([[0, 15, 7, 1], [5, 6, 7, 20], [-3, -30, -15, -1]], np.float32)
    made = round_to_grid(weights, make_grid(weights, scheme(symmetric=False)))
    assert made.grid.scales[:, 0] == pytest.approx([1.0, 20 / 15, 2.0])
    assert made.grid.zeros[:, 0].tolist() == [-8, -8, 7]
    assert np.abs(made.floats() - weights).max() <= 1.0


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("dtype", ["f4", "f2", BF16])
def test_no_element_is_further_off_than_half_a_step(bits: int, symmetric: bool, dtype: str) -> None:
    weights = np.random.default_rng(0).standard_normal((8, 64), np.float32)
    made = round_to_grid(weights, make_grid(weights, scheme(bits, 16, symmetric, dtype)))
    steps = np.repeat(made.grid.scales, 16, axis=1)
    assert (made.grid.scales == made.grid.scales.astype(dtype).astype(np.float32)).all()
    # A scale that is rounded down leaves the ends of the range a little outside.
    assert (np.abs(made.floats() - weights) <= steps * (0.53 if bits == 4 else 1.2)).all()


def test_weights_below_what_a_scale_can_hold_become_zero() -> None:
    made = round_to_grid(weights := np.full((1, 4), 1e-9, np.float32), make_grid(weights, scheme()))
    assert made.codes.any()
    made = round_to_grid(weights, make_grid(weights, scheme(dtype="f2")))
    assert not made.codes.any() and (made.grid.scales == 1).all()


def test_a_searched_range_costs_least_where_inputs_are() -> None:
    random = np.random.default_rng(1)
    weights = random.standard_normal((6, 32), np.float32)
    weights[:, 5] = 8  # a lonely large column whose input is silent
    gram = np.diag(np.where(np.arange(32) == 5, 1e-6, 1.0))
    plain, searched = (
        make_grid(weights, scheme(group=16)),
        search_grid(weights, scheme(group=16), gram),
    )
    assert (searched.scales[:, 0] < 0.6 * plain.scales[:, 0]).all()

    def error(grid: object) -> float:
        off = round_to_grid(weights, grid).floats() - weights  # type: ignore[arg-type]
        return float(np.einsum("oi,ij,oj->", off, gram, off))

    assert error(searched) < 0.5 * error(plain)
