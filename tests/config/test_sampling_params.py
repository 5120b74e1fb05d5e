"""Every rule of the sampling parameters, at its boundaries."""

from typing import Any

import numpy as np
import pytest

from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.errors import ConfigError, RequestError, UnsupportedError

NAN, INF = float("nan"), float("inf")
WRONG = [
    *(("n", value) for value in (0, -1, 1.0, "2", True, None)),
    *(("temperature", value) for value in (-0.1, NAN, INF, 2.01, "1", None, True)),
    *(("top_p", value) for value in (0, 0.0, -0.5, 1.0001, NAN, "1", None)),
    *(("top_k", value) for value in (-2, 1.5, "3", None, True)),
    *(("min_p", value) for value in (-0.1, 1.1, NAN, "0", None)),
    *(("seed", value) for value in (-1, 2**63, 1.0, "7", True)),
    *(("stop", value) for value in ("", ["a", ""], [5], 5, True)),
    *(("stop_token_ids", value) for value in ([-1], [1.0], ["a"], [True], 5, "ab")),
    *(("max_tokens", value) for value in (0, -1, 1.5, "16", True)),
    *(("logprobs", value) for value in (-1, 1.5, "3", True)),
    *(("include_stop_str_in_output", value) for value in (1, "yes", None)),
    *(("ignore_eos", value) for value in (1, "no", None)),
    *(("detokenize", value) for value in (0, "no", None)),
    *(("skip_special_tokens", value) for value in (1, None)),
]
RIGHT = [
    *(("n", value) for value in (1, 5)),
    *(("temperature", value) for value in (0, 0.0, 5e-324, 1e-30, 1, 2, 2.0)),
    *(("top_p", value) for value in (1e-9, 0.5, 1, 1.0)),
    *(("top_k", value) for value in (-1, 0, 1, 9999999, 2**40)),
    *(("min_p", value) for value in (0, 0.0, 0.5, 1, 1.0)),
    *(("seed", value) for value in (None, 0, 2**63 - 1)),
    *(("max_tokens", value) for value in (None, 1, 10**9)),
    *(("logprobs", value) for value in (None, 0, 20)),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_wrong_value_is_refused_with_its_name(name: str, value: Any) -> None:
    """BB-19 (vllm#24734): top_p 0, top_k -2 and the like are a ValueError, nothing later."""
    with pytest.raises(ConfigError, match=f"SamplingParams.{name}=.*: must be ") as caught:
        SamplingParams(**{name: value})
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(("name", "value"), RIGHT)
def test_a_value_at_the_boundary_is_kept(name: str, value: Any) -> None:
    assert getattr(SamplingParams(**{name: value}), name) == value


def test_defaults_are_those_that_users_know() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k) == (1, 1.0, 1.0, 0)
    assert (params.min_p, params.seed, params.max_tokens) == (0.0, None, 16)
    assert params.stop_strings == () and params.stop_token_ids == () and params.logprobs is None
    assert params.detokenize and params.skip_special_tokens and not params.ignore_eos


def test_several_greedy_completions_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"SamplingParams.n=2: must be 1 where temperature is 0"):
        SamplingParams(n=2, temperature=0)
    assert SamplingParams(n=2, temperature=1e-9).n == 2


@pytest.mark.parametrize(
    ("given", "stops"),
    [("ab", ("ab",)), (["a", "b"], ("a", "b")), (("a",), ("a",)), (None, ()), ([], ())],
)
def test_stop_strings_are_one_or_many(given: Any, stops: tuple[str, ...]) -> None:
    assert SamplingParams(stop=given).stop_strings == stops


def test_stop_ids_become_a_tuple() -> None:
    assert SamplingParams(stop_token_ids=[3, 4]).stop_token_ids == (3, 4)
    assert SamplingParams(stop_token_ids=None).stop_token_ids == ()  # type: ignore[arg-type]


def test_ceilings_name_both_numbers() -> None:
    assert len(SamplingParams(stop_token_ids=range(64)).stop_token_ids) == 64
    with pytest.raises(RequestError, match="65 ids, 64 are allowed"):
        SamplingParams(stop_token_ids=range(65))
    with pytest.raises(RequestError, match="logprobs=21: at most 20"):
        SamplingParams(logprobs=21)


def test_stop_strings_need_text() -> None:
    with pytest.raises(ConfigError, match="SamplingParams.detokenize=False: must be True where"):
        SamplingParams(stop="x", detokenize=False)
    assert not SamplingParams(detokenize=False).detokenize


def test_numpy_scalars_of_python_s_kind_are_numbers() -> None:
    assert SamplingParams(temperature=np.float64(0.5)).temperature == 0.5


def test_params_are_frozen() -> None:
    with pytest.raises(AttributeError):
        SamplingParams().top_k = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("presence_penalty", 0.0),
        ("repetition_penalty", 1.0),
        ("min_tokens", 0),
        ("bad_words", None),
    ],
)
def test_a_planned_parameter_that_asks_for_nothing_is_taken(name: str, value: object) -> None:
    assert SamplingParams(**{name: value}) == SamplingParams()


def test_a_planned_parameter_that_asks_for_its_feature_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="min_tokens=3 asks for .* not built yet"):
        SamplingParams(min_tokens=3)
