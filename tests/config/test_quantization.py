"""Rounding at load and the form of weights: what may be asked, and what is decided."""

from typing import Any

import pytest

from jaxinfer.config.engine_config import engine_config
from jaxinfer.config.quantization import (
    Quantization,
    choose_weight_form,
    quantization_from,
)
from jaxinfer.errors import ConfigError, UnsupportedError

INT4 = Quantization(method="int4")


def layer(number: int, name: str = "mlp.up_proj") -> str:
    return f"model.layers.{number}.{name}"


@pytest.mark.parametrize("method", ["int8", "int4", "fp8"])
def test_a_name_is_enough(method: str) -> None:
    assert quantization_from(method) == Quantization(method=method)  # type: ignore[arg-type]
    assert engine_config(quantization=method).quantization == method


def test_nothing_asked() -> None:
    assert quantization_from(None) is None
    assert engine_config().weights == "auto"


def test_a_mapping_sets_fields() -> None:
    given = {"method": "int4", "group_size": 64, "overrides": {".*down_proj": "int8"}}
    assert quantization_from(given) == Quantization(
        method="int4", group_size=64, overrides=((".*down_proj", "int8"),)
    )


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("int3", "quantization='int3'"),
        (8, "quantization=8"),
        ({}, "method"),
        ({"method": "int4", "group": 3}, "has no 'group'; it has: method, group_size"),
        ({"method": "int4", "group_size": 0}, "group_size=0"),
        ({"method": "int4", "group_size": True}, "group_size=True"),
        ({"method": "int4", "float_ends": -1}, "float_ends=-1"),
        ({"method": "int4", "overrides": {"x": "int3"}}, "'int3'"),
        ({"method": "int4", "overrides": {"(": "int8"}}, r"'\('"),
    ],
    ids=str,
)
def test_what_cannot_be_asked(value: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        engine_config(quantization=value)


@pytest.mark.parametrize("method", ["gptq", "awq", "compressed-tensors", "gguf"])
def test_methods_of_checkpoints_are_not_asked_for(method: str) -> None:
    with pytest.raises(UnsupportedError, match=f"{method}.*leave the option out"):
        engine_config(quantization=method)


def test_ends_head_and_router_stay_float() -> None:
    methods = [INT4.method_of(layer(number), 4) for number in range(4)]
    assert methods == ["float", "int4", "int4", "float"]
    assert INT4.method_of("lm_head", 4) == INT4.method_of(layer(1, "mlp.gate"), 4) == "float"
    everywhere = Quantization(method="int8", float_ends=0)
    assert [everywhere.method_of(layer(number), 2) for number in (0, 1)] == ["int8", "int8"]


def test_the_first_override_decides_before_all_else() -> None:
    asked = Quantization(
        method="int4", overrides=((r"lm_head", "int8"), (r".*down_proj", "float"), (r".*", "fp8"))
    )
    assert asked.method_of("lm_head", 4) == "int8"
    assert asked.method_of(layer(1, "mlp.down_proj"), 4) == "float"
    assert asked.method_of(layer(0), 4) == "fp8"


@pytest.mark.parametrize(
    ("columns", "group"), [(4096, 128), (576, 64), (1536, 128), (96, 32), (80, 80), (200, 128)]
)
def test_groups_of_int4(columns: int, group: int) -> None:
    """The largest that divides the width; a width with none has a short last group."""
    assert INT4.group_of("int4", columns) == group


def test_groups_that_are_given_and_rows_of_8_bits() -> None:
    assert INT4.group_of("int8", 576) == INT4.group_of("fp8", 576) == 576
    given = Quantization(method="int8", group_size=128)
    assert (given.group_of("int8", 576), given.group_of("int8", 64)) == (128, 64)
    assert Quantization(method="int4", group_size=-1).group_of("int4", 576) == 576


@pytest.mark.parametrize(
    ("asked", "platform", "form", "why"),
    [
        ("auto", "cpu", "dequantized", "a CPU is fastest"),
        ("auto", "gpu", "packed", "fewer bytes"),
        ("packed", "cpu", "packed", "asked for"),
        ("dequantized", "gpu", "dequantized", "asked for"),
    ],
)
def test_the_form_of_weights(asked: str, platform: str, form: str, why: str) -> None:
    found = choose_weight_form(asked, platform, 5)
    assert found[0] == form and why in found[1]


def test_what_speaks_against_packed_ones_counts_where_a_gpu_is_left_the_choice() -> None:
    for asked, platform, form in (
        ("auto", "gpu", "dequantized"),
        ("packed", "gpu", "packed"),
        ("auto", "cpu", "dequantized"),
    ):
        found = choose_weight_form(asked, platform, 5, "no kernel")
        assert found[0] == form
        assert (found[1] == "no kernel") == ((asked, platform) == ("auto", "gpu"))


def test_nothing_to_pack() -> None:
    assert choose_weight_form("packed", "gpu", 0)[0] == "dequantized"


def test_weights_is_one_of_three() -> None:
    with pytest.raises(ConfigError, match="weights='raw' must be one of 'auto', 'packed'"):
        engine_config(weights="raw")
