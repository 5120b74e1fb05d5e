"""Every rule of the sampling parameters, at its boundaries."""

from dataclasses import replace
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
    *(("prompt_logprobs", value) for value in (-1, 1.5, "3", True)),
    *(("min_tokens", value) for value in (-1, 1.5, "3", True, None, 17)),
    *(("presence_penalty", value) for value in (-2.01, 2.01, NAN, INF, "1", None, True)),
    *(("frequency_penalty", value) for value in (-2.01, 2.01, NAN, -INF, "1", None, False)),
    *(("repetition_penalty", value) for value in (0, 0.0, -1, NAN, INF, "1", None, True)),
    *(("logit_bias", value) for value in (5, [1], "ab", {1.0: 1}, {"a": 1}, {"-1": 1}, {-1: 1})),
    *(("logit_bias", value) for value in ({True: 1}, {"": 1}, {"9" * 5000: 1}, {"²": 1})),
    *(("logit_bias", value) for value in ({1: "2"}, {1: NAN}, {1: None}, {1: True})),
    ("logit_bias", {"5": 1, 5: 2}),
    *(("allowed_token_ids", value) for value in ([], (), [-1], [1.0], ["a"], [True], 5, "ab")),
    *(("bad_words", value) for value in ("ab", [""], [5], 5, ["a", None])),
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
    *(("prompt_logprobs", value) for value in (None, 0, 20)),
    *(("min_tokens", value) for value in (0, 1, 16)),
    *(("presence_penalty", value) for value in (-2, 0, 2.0)),
    *(("frequency_penalty", value) for value in (-2.0, 0.5, 2)),
    *(("repetition_penalty", value) for value in (1e-30, 0.5, 1, 1e30)),
    *(("allowed_token_ids", value) for value in (None, (0,), (5, 3, 5))),
    *(("bad_words", value) for value in ((), (" ",), ("a", "b c"))),
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
    given = SamplingParams(
        max_tokens=np.int64(5), seed=np.uint32(7), top_k=np.int32(3), top_p=np.float32(0.5)
    )
    assert given == SamplingParams(max_tokens=5, seed=7, top_k=3, top_p=0.5)
    assert type(given.seed) is int and type(given.top_p) is float
    with pytest.raises(ConfigError, match="max_tokens"):
        SamplingParams(max_tokens=np.float32(5))


def test_params_are_frozen() -> None:
    with pytest.raises(AttributeError):
        SamplingParams().top_k = 3  # type: ignore[misc]


def test_defaults_of_limits_ask_for_nothing() -> None:
    params = SamplingParams()
    assert params.presence_penalty == params.frequency_penalty == params.min_tokens == 0
    assert params.repetition_penalty == 1 and params.prompt_logprobs is None
    assert params.bias_entries == () and params.bad_words == ()
    assert params.allowed_token_ids is None and params.logit_bias is None
    assert params == SamplingParams(bad_words=None, logit_bias={})  # type: ignore[arg-type]


def test_a_least_number_of_tokens_is_at_most_the_most() -> None:
    with pytest.raises(ConfigError, match=r"min_tokens=5: must be at most max_tokens \(4\)"):
        SamplingParams(min_tokens=5, max_tokens=4)
    assert SamplingParams(min_tokens=4, max_tokens=4).min_tokens == 4
    assert SamplingParams(min_tokens=10**9, max_tokens=None).min_tokens == 10**9


def test_a_bias_is_cut_and_sorted_and_its_ids_may_be_strings() -> None:
    """As JSON has them."""
    params = SamplingParams(logit_bias={"50": 101, 7: -1e9, "007777": 0.5, 8: INF, 9: -100})
    assert params.bias_entries == ((7, -100), (8, 100), (9, -100), (50, 100), (7777, 0.5))


def test_ids_may_be_numpy_s() -> None:
    given = np.array([3, 5])
    params = SamplingParams(
        stop_token_ids=given,  # type: ignore[arg-type]
        allowed_token_ids=given,  # type: ignore[arg-type]
        logit_bias={given[0]: 1},
    )
    assert params.stop_token_ids == params.allowed_token_ids == (3, 5)
    assert params.bias_entries == ((3, 1.0),) and type(params.stop_token_ids[0]) is int


def test_ceilings_of_limits_name_both_numbers() -> None:
    assert len(SamplingParams(logit_bias=dict.fromkeys(range(300), 1)).bias_entries) == 300
    with pytest.raises(RequestError, match="logit_bias has 301 ids, 300 are allowed"):
        SamplingParams(logit_bias=dict.fromkeys(range(301), 1))
    assert len(SamplingParams(bad_words=["a"] * 64).bad_words) == 64
    with pytest.raises(RequestError, match="bad_words has 65 words, 64 are allowed"):
        SamplingParams(bad_words=["a"] * 65)
    with pytest.raises(RequestError, match="prompt_logprobs=21: at most 20"):
        SamplingParams(prompt_logprobs=21)


def test_params_are_equal_and_hash_by_what_they_mean() -> None:
    one = SamplingParams(stop="a", logit_bias={"5": 1}, bad_words=["x"], allowed_token_ids=[5])
    two = SamplingParams(stop=["a"], logit_bias={5: 1.0}, bad_words=("x",), allowed_token_ids=(5,))
    assert one == two and hash(one) == hash(two)
    assert one != SamplingParams(
        stop="a", logit_bias={5: 2}, bad_words=["x"], allowed_token_ids=[5]
    )


def test_changed_copies_keep_the_rest() -> None:
    one = SamplingParams(stop=["a"], logit_bias={5: 1}, n=2)
    assert replace(one, n=1, seed=3).bias_entries == one.bias_entries
    assert replace(one, n=1).stop_strings == ("a",)


@pytest.mark.parametrize(
    ("name", "value"), [("best_of", 1), ("best_of", None), ("use_beam_search", False)]
)
def test_a_planned_parameter_that_asks_for_nothing_is_taken(name: str, value: object) -> None:
    assert SamplingParams(**{name: value}) == SamplingParams()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("best_of", 2), ("use_beam_search", True), ("structured_outputs", {"json": {}})),
        *(("guided_decoding", {"regex": "a"}), ("lora_request", "an adapter")),
    ],
)
def test_a_planned_parameter_that_asks_for_its_feature_is_refused(name: str, value: Any) -> None:
    with pytest.raises(UnsupportedError, match=f"{name}=.* asks for .* not built yet"):
        SamplingParams(**{name: value})
