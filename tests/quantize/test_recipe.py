from typing import Any

import pytest

from jaxinfer.errors import ConfigError, UnsupportedError
from jaxinfer.quantize.recipe import make_recipe


def test_defaults_depend_on_the_method_and_the_bits() -> None:
    assert make_recipe("gptq").group_size == "auto"
    assert make_recipe("rtn", bits=8).group_size == -1
    smooth = make_recipe("smoothquant")
    assert (smooth.bits, smooth.group_size, smooth.rounds_inputs) == (8, -1, True)
    assert [make_recipe(m).is_calibrated for m in ("rtn", "awq", "gptq")] == [False, True, True]


@pytest.mark.parametrize(
    "method, options, said",
    [
        ("gtpq", {}, "nearest: 'gptq'"),
        ("rtn", {"bits": 3}, "bits=3 must be 4 or 8"),
        ("rtn", {"bits": True}, "bits=True"),
        ("rtn", {"group_size": 0}, "group_size=0"),
        ("rtn", {"group_size": "all"}, "group_size='all'"),
        ("rtn", {"groupsize": 64}, "nearest: 'group_size'"),
        ("awq", {"damping": 0.1}, "damping=0.1 means nothing to method='awq'"),
        ("rtn", {"calibration_tokens": 64}, "means nothing to method='rtn'"),
        ("gptq", {"damping": 1.5}, "between 0 and 1"),
        ("gptq", {"sequence_length": 1}, "at least 2"),
        ("gptq", {"protect": "lm_head"}, "must be a list"),
        ("gptq", {"format": "gguf"}, "compressed-tensors"),
        ("gptq", {"dtype": "int8"}, "bfloat16"),
    ],
)
def test_wrong_options_are_refused(method: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_recipe(method, **options)


@pytest.mark.parametrize(
    "options", [{"bits": 4}, {"group_size": 128}, {"bits": 8, "symmetric": False}]
)
def test_smoothquant_is_made_for_whole_rows_of_int8(options: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="a scale a row"):
        make_recipe("smoothquant", **options)
