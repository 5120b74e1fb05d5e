"""A request's service: right values are kept, wrong ones refused with the value and the rule."""

from typing import Any

import pytest

from jaxinfer.config.request_options import RequestOptions
from jaxinfer.errors import ConfigError


def test_nothing_asked_is_an_ordinary_request() -> None:
    options = RequestOptions()
    assert (options.priority, options.latency_sensitive) == (0, False)
    assert options.timeout_s is None and options.use_prefix_cache


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("priority", value) for value in (0, -5, 10**9)),
        *(("latency_sensitive", value) for value in (False, True)),
        *(("timeout_s", value) for value in (None, 1, 0.001, 1e9)),
        *(("use_prefix_cache", value) for value in (False, True)),
    ],
)
def test_a_right_value_is_kept(name: str, value: Any) -> None:
    assert getattr(RequestOptions(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("priority", value) for value in (None, 1.0, "1", True)),
        *(("latency_sensitive", value) for value in (None, 1, "yes")),
        *(
            ("timeout_s", value)
            for value in (0, -1, float("nan"), float("inf"), "5", True, -float("inf"))
        ),
        *(("use_prefix_cache", value) for value in (None, 0, "no")),
    ],
)
def test_a_wrong_value_is_refused_with_its_name_and_value(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        RequestOptions(**{name: value})
    assert str(caught.value).startswith(f"{name}={value!r} must be ")
    assert isinstance(caught.value, ValueError)
