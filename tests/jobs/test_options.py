"""The option tables name exactly what the records have."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from jaxinfer.config.engine_config import EngineConfig, engine_config
from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.errors import ConfigError
from jaxinfer.jobs.options import (
    CHAT_OPTIONS,
    ENGINE_OPTIONS,
    JOB_OPTIONS,
    LINE_OPTIONS,
    RAY_OPTIONS,
    SAMPLING_OPTIONS,
    make_sampling_params,
    with_options,
)


def test_every_sampling_parameter_is_an_option() -> None:
    assert set(SAMPLING_OPTIONS) == {field.name for field in fields(SamplingParams) if field.init}


def test_no_two_options_of_a_batch_job_share_a_name() -> None:
    tables = (JOB_OPTIONS, RAY_OPTIONS, LINE_OPTIONS, ENGINE_OPTIONS)
    assert len({name for table in tables for name in table}) == sum(map(len, tables))


def test_chat_offers_only_what_it_can_honour() -> None:
    left_out = set(SAMPLING_OPTIONS) - set(CHAT_OPTIONS)
    assert left_out == {"n", "logprobs", "prompt_logprobs", "detokenize"}


def test_every_engine_switch_is_an_option_but_the_one_whose_name_is_taken() -> None:
    assert set(ENGINE_OPTIONS) == {field.name for field in fields(EngineConfig)} - {"seed"}
    assert not set(ENGINE_OPTIONS) & set(SAMPLING_OPTIONS), "one flag, two meanings"


@pytest.mark.parametrize(
    ("record", "table"), [(SamplingParams, SAMPLING_OPTIONS), (EngineConfig, ENGINE_OPTIONS)]
)
def test_options_have_the_type_of_their_default(record: Any, table: Mapping[str, Any]) -> None:
    """So that a number is not handed on as text, nor a switch as a string."""
    given = record()
    for name, (kind, _) in table.items():
        default = getattr(given, name)
        if default is not None and not isinstance(default, tuple):
            assert type(default) is kind, name


def test_biases_are_pairs_of_id_and_number() -> None:
    params = make_sampling_params({"logit_bias": ["5=-1", "7=2.5", "9=-inf"]})
    assert params.bias_entries == ((5, -1.0), (7, 2.5), (9, -100.0))


@pytest.mark.parametrize("entry", ["5", "5=", "=1", "5=x", "5=nan", "a=1", "-1=2"])
def test_a_bias_that_is_no_pair_is_refused(entry: str) -> None:
    with pytest.raises(ConfigError, match="logit.bias"):
        make_sampling_params({"logit_bias": [entry]})
    with pytest.raises(ConfigError, match="each id once"):
        make_sampling_params({"logit_bias": ["5=1", "5=2"]})


def test_given_options_win_over_defaults() -> None:
    params = make_sampling_params({"max_tokens": 5}, max_tokens=100, temperature=0.5)
    assert (params.max_tokens, params.temperature) == (5, 0.5)


def command_with(rows: dict[str, tuple[Any, str]], seen: list[dict[str, Any]]) -> typer.Typer:
    app = typer.Typer()

    @app.command()
    @with_options(table=rows)
    def command(table: dict[str, Any]) -> None:
        seen.append(table)

    return app


def test_a_mapping_is_given_as_json() -> None:
    seen: list[dict[str, Any]] = []
    app = command_with({"speculative_config": (dict, "")}, seen)
    arguments = ["--speculative-config", '{"method": "ngram", "adaptive": false}']
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert CliRunner().invoke(app, []).exit_code == 0
    assert seen == [{"speculative_config": {"method": "ngram", "adaptive": False}}, {}]
    for wrong in ("ngram", "[1]", "{", "5"):
        done = CliRunner().invoke(app, ["--speculative-config", wrong])
        assert isinstance(done.exception, ConfigError)
        assert f"--speculative-config {wrong}: must be a JSON object" in str(done.exception)


def test_kernels_are_asked_for_by_op() -> None:
    seen: list[dict[str, Any]] = []
    app = command_with(dict(ENGINE_OPTIONS), seen)
    arguments = ["--kernels", "rms_norm=xla,paged_attention=mosaic"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    asked = {"paged_attention": "mosaic", "rms_norm": "xla"}
    assert engine_config(**seen[0]) == engine_config(kernels=asked)


def test_false_and_zero_count_as_given() -> None:
    seen: list[dict[str, Any]] = []
    rows = {"count": (int, ""), "flag": (bool, ""), "many": (list[str], "")}
    app = command_with(rows, seen)
    assert CliRunner().invoke(app, ["--count", "0", "--no-flag"]).exit_code == 0
    assert CliRunner().invoke(app, []).exit_code == 0
    assert seen == [{"count": 0, "flag": False}, {}]
