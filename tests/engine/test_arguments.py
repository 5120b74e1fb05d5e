"""The argument forms of the offline API: one or many prompts, parameters for all or one each."""

import logging
from typing import Any

import numpy as np
import pytest

from jaxinfer.config.request_options import RequestOptions
from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.engine.arguments import (
    as_conversations,
    as_prompts,
    default_params,
    options_for_each,
    params_for_each,
)
from jaxinfer.errors import ConfigError

GREEDY = SamplingParams(temperature=0)
HI = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("prompts", "wanted"),
    [
        *(("a", ["a"]), (["a", "b"], ["a", "b"]), (("a",), ["a"]), ([], [])),
        *(([1, 2], [[1, 2]]), ([np.int32(1)], [[1]]), ([[1], [2]], [[1], [2]])),
        *(({"prompt": "a"}, [{"prompt": "a"}]), ([{"prompt": "a"}, "b"], [{"prompt": "a"}, "b"])),
        *((None, [None]), (5, [5]), (b"ab", [b"ab"]), ([1, "a"], [1, "a"])),
        (range(3), [[0, 1, 2]]),
    ],
    ids=str,
)
def test_prompts(prompts: Any, wanted: list[Any]) -> None:
    assert as_prompts(prompts) == wanted


def test_an_array_of_ids_is_one_prompt_and_a_generator_many() -> None:
    assert [list(one) for one in as_prompts(np.array([1, 2]))] == [[1, 2]]
    assert as_prompts(text for text in "ab") == ["a", "b"]


@pytest.mark.parametrize(
    ("messages", "wanted"),
    [([HI], [[HI]]), ([HI, HI], [[HI, HI]]), ([[HI], [HI]], [[HI], [HI]]), ([], [[]])]
    + [(None, [None]), ("hi", ["hi"]), (HI, [HI]), ([[]], [[]])],
    ids=str,
)
def test_conversations(messages: Any, wanted: list[Any]) -> None:
    assert as_conversations(messages) == wanted


def test_parameters_for_all_or_one_each() -> None:
    default = SamplingParams(max_tokens=3)
    assert params_for_each(None, 2, default) == [default] * 2
    assert params_for_each(GREEDY, 2, default) == [GREEDY] * 2
    assert params_for_each([GREEDY, default], 2, default) == [GREEDY, default]
    assert params_for_each((GREEDY,), 1, default) == [GREEDY]
    assert params_for_each(None, 0, default) == params_for_each([], 0, default) == []


@pytest.mark.parametrize("wrong", [{"temperature": 0}, ["greedy"], 5, [GREEDY, None]], ids=str)
def test_what_is_no_parameters_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="must be SamplingParams or a list"):
        params_for_each(wrong, 2, GREEDY)


def test_as_many_parameters_as_prompts() -> None:
    with pytest.raises(ConfigError, match="2 sampling params for 3 prompts; pass one for all"):
        params_for_each([GREEDY] * 2, 3, GREEDY)


def test_options_for_all_or_one_each() -> None:
    urgent = RequestOptions(latency_sensitive=True)
    assert options_for_each(None, None, 2) == [RequestOptions()] * 2
    assert options_for_each(urgent, None, 2) == [urgent] * 2
    assert options_for_each([urgent, RequestOptions()], None, 2) == [urgent, RequestOptions()]
    assert [one.priority for one in options_for_each(None, 4, 2)] == [4, 4]
    assert [one.priority for one in options_for_each(None, [4, -1], 2)] == [4, -1]


@pytest.mark.parametrize(
    ("options", "priority", "words"),
    [
        (RequestOptions(), 1, "priority and options are given"),
        ({"priority": 1}, None, "must be RequestOptions or a list"),
        ([RequestOptions()], None, "1 request options for 2 prompts"),
        (None, [1, 2, 3], "3 priorities for 2 prompts"),
        (None, [1, "b"], "priority='b' must be an int"),
        (None, "ab", "priority='a' must be an int"),
        (None, 1.5, "priority=1.5"),
    ],
)
def test_wrong_options_are_refused(options: Any, priority: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        options_for_each(options, priority, 2)


def test_defaults_are_ours_unless_the_checkpoint_s_are_wanted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Greedy, `do_sample` and names that vLLM leaves alone are not taken over."""
    config = {
        "temperature": 0.6,
        "top_k": 20,
        "max_new_tokens": 9,
        "do_sample": True,
        "top_p": None,
    }
    assert default_params(config, wanted=False) == SamplingParams()
    with caplog.at_level(logging.INFO, "jaxinfer"):
        found = default_params(config, wanted=True)
    assert found == SamplingParams(temperature=0.6, top_k=20, max_tokens=9)
    assert "generation_config.json" in caplog.text and "0.6" in caplog.text
    with pytest.raises(ConfigError, match="temperature=-1"):
        default_params({"temperature": -1}, wanted=True)
