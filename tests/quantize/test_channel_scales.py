import numpy as np

from jaxinfer.quantize.channel_scales import search_scales, smoothing_scales
from jaxinfer.quantize.grid import Scheme, make_grid, round_to_grid
from jaxinfer.quantize.input_statistics import InputStatistics

SCHEME = Scheme(bits=4, group=32, symmetric=True, scale_dtype=np.dtype(np.float32))


def statistics(inputs: np.ndarray) -> InputStatistics:
    return InputStatistics(
        gram=inputs.T @ inputs,
        total=np.abs(inputs).sum(axis=0),
        largest=np.abs(inputs).max(axis=0),
        num_tokens=len(inputs),
    )


def loud_inputs() -> np.ndarray:
    random = np.random.default_rng(0)
    return random.standard_normal((200, 64)) * np.where(np.arange(64) % 16 == 5, 20.0, 1.0)


def test_searched_scales_lower_the_error_where_few_inputs_are_loud() -> None:
    weights = [np.random.default_rng(n).standard_normal((24, 64), np.float32) for n in (1, 2)]
    inputs = loud_inputs()

    def error(scales: np.ndarray) -> float:
        off = 0.0
        for one in weights:
            made = round_to_grid(one * scales, make_grid(one * scales, SCHEME))
            off += float((((made.floats() / scales - one) @ inputs.T) ** 2).sum())
        return off

    scales = search_scales([(one, SCHEME) for one in weights], statistics(inputs))
    assert error(scales) < 0.7 * error(np.ones(64, np.float32))
    assert scales[5] > 1.5 * np.median(scales)
    equal = search_scales([(weights[0], SCHEME)], statistics(inputs), lambda s: np.full_like(s, 2))
    assert (equal == 1).all()


def test_smoothing_meets_in_the_middle() -> None:
    inputs = loud_inputs()
    inputs[:, 7] = 0
    weights = np.random.default_rng(3).standard_normal((24, 64), np.float32)
    scales = smoothing_scales([weights, 2 * weights], statistics(inputs), 0.5)
    sizes = np.abs(inputs).max(axis=0) / scales
    assert np.allclose(np.delete(sizes, 7), np.delete(np.abs(2 * weights * scales).max(axis=0), 7))
    assert scales[7] == 1
    strong = smoothing_scales([weights], statistics(inputs), 0.9)
    assert strong[5] / strong[6] > scales[5] / scales[6]


def test_divided_statistics_are_those_of_divided_inputs() -> None:
    inputs, scales = loud_inputs(), np.linspace(0.5, 2, 64)
    divided, anew = statistics(inputs).divided(scales), statistics(inputs / scales)
    for name in ("gram", "mean", "largest"):
        assert np.allclose(getattr(divided, name), getattr(anew, name))
    both = statistics(inputs[:50]).joined(statistics(inputs[50:]))
    assert np.allclose(both.gram, statistics(inputs).gram) and both.num_tokens == 200
