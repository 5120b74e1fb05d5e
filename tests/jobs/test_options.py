"""The option tables name exactly what the records have."""

from dataclasses import fields
from typing import Any

import typer
from typer.testing import CliRunner

from jaxinfer.config.engine_config import EngineConfig
from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.jobs.options import (
    CHAT_OPTIONS,
    ENGINE_OPTIONS,
    SAMPLING_OPTIONS,
    make_sampling_params,
    with_options,
)


def test_every_sampling_parameter_is_an_option() -> None:
    assert set(SAMPLING_OPTIONS) == {field.name for field in fields(SamplingParams) if field.init}


def test_chat_offers_only_what_it_can_honour() -> None:
    assert set(SAMPLING_OPTIONS) - set(CHAT_OPTIONS) == {"n", "logprobs", "detokenize"}


def test_engine_options_exist() -> None:
    assert set(ENGINE_OPTIONS) <= {field.name for field in fields(EngineConfig)}
    assert not set(ENGINE_OPTIONS) & set(SAMPLING_OPTIONS), "one flag, two meanings"


def test_given_options_win_over_defaults() -> None:
    params = make_sampling_params({"max_tokens": 5}, max_tokens=100, temperature=0.5)
    assert (params.max_tokens, params.temperature) == (5, 0.5)


def test_false_and_zero_count_as_given() -> None:
    seen: list[dict[str, Any]] = []
    app = typer.Typer()

    @app.command()
    @with_options(table={"count": (int, ""), "flag": (bool, ""), "many": (list[str], "")})
    def command(table: dict[str, Any]) -> None:
        seen.append(table)

    assert CliRunner().invoke(app, ["--count", "0", "--no-flag"]).exit_code == 0
    assert CliRunner().invoke(app, []).exit_code == 0
    assert seen == [{"count": 0, "flag": False}, {}]
