"""What may be asked of speculation."""

import re
from pathlib import Path
from typing import Any

import pytest

from jaxinfer.config.engine_config import engine_config
from jaxinfer.config.quantization import Quantization
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
        ({"method": "magic"}, "method='magic' must be one of 'ngram', 'draft_model', 'self'"),
        ({"method": "ngram", "model": "x"}, "model='x' is for method 'draft_model', not 'ngram'"),
        ({"method": "ngram", "num_layers": 2}, "num_layers=2 is for method 'self'"),
        ({"method": "draft_model"}, "model=None must name the draft model"),
        ({"method": "draft_model", "model": 3}, "model=3 must name"),
        ({"method": "draft_model", "model": "x", "num_layers": 2}, "not 'draft_model'"),
        ({"method": "self"}, "set quantization (such as 'int4') or num_layers"),
        ({"method": "self", "num_layers": 0}, "num_layers=0 must be an int of at least 1"),
        ({"method": "self", "quantization": "int3"}, "quantization='int3'"),
    ],
)
def test_wrong_values_say_the_rule(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        engine_config(speculative_config=given)


def test_a_model_is_a_draft_model() -> None:
    """As vLLM reads it: the method follows from `model`."""
    made = speculative_config({"model": "x"})
    assert made is not None and made.method == "draft_model" and made.has_model
    assert speculative_config({"model": Path("x/y")}) == SpeculativeConfig(
        method="draft_model", model="x/y"
    )


def test_what_is_rounded_is_a_record() -> None:
    made = speculative_config({"method": "self", "quantization": "int4", "num_layers": 3})
    assert made is not None and made.quantization == Quantization(method="int4")
    assert made.num_layers == 3


@pytest.mark.parametrize("method", ["eagle", "medusa", "mtp"])
def test_methods_that_are_not_built_are_refused_by_name(method: str) -> None:
    with pytest.raises(UnsupportedError, match="not built yet"):
        engine_config(speculative_config={"method": method})
