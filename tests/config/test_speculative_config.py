"""What may be asked of speculation."""

import re
from typing import Any

import pytest

from jaxinfer.config.engine_config import engine_config
from jaxinfer.config.speculative_config import SpeculativeConfig, speculative_config
from jaxinfer.errors import ConfigError, UnsupportedError


def test_a_mapping_becomes_a_record() -> None:
    ask = engine_config(speculative_config={"method": "ngram", "num_speculative_tokens": 3})
    assert ask.speculative_config == SpeculativeConfig(num_speculative_tokens=3)
    assert engine_config().speculative_config is None


def test_the_table_is_pairs() -> None:
    made = speculative_config({"tokens_by_running": {4: 5, 8: 2}})
    assert made is not None and made.tokens_by_running == ((4, 5), (8, 2))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("ngram", "must be a mapping"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens=0 must be an int of at least 1"),
        ({"num_speculative_tokens": True}, "num_speculative_tokens=True"),
        ({"prompt_lookup_max": 1, "prompt_lookup_min": 2}, "is above prompt_lookup_max=1"),
        ({"num_speculativ_tokens": 3}, "did you mean 'num_speculative_tokens'"),
        ({"tokens_by_running": 5}, "must be pairs"),
        ({"tokens_by_running": ((8, 2), (4, 5))}, "must ascend"),
        ({"tokens_by_running": ((8, 6),)}, "tokens_by_running=6"),
        ({"adaptive": 1}, "adaptive=1"),
        ({"method": "magic"}, "method='magic' must be 'ngram'"),
    ],
)
def test_wrong_values_say_the_rule(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        engine_config(speculative_config=given)


@pytest.mark.parametrize("given", [{"method": "draft_model", "model": "x"}, {"model": "x"}])
def test_methods_that_are_not_built_are_refused_by_name(given: dict[str, str]) -> None:
    with pytest.raises(UnsupportedError, match="not built yet"):
        engine_config(speculative_config=given)
