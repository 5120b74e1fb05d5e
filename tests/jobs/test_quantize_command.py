"""`jaxinfer quantize`, with tiny models."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from jaxinfer.checkpoint.checkpoint import open_checkpoint
from jaxinfer.jobs.cli import app
from jaxinfer.quantize import sensitivity
from jaxinfer.quantize.ranking import Ranking, Sensitivity
from jaxinfer.quantize.texts import held_out_text
from tests.support.byte_tokenizer import save_byte_tokenizer
from tests.support.tiny_models import write_tiny

RUN = CliRunner()


def test_a_folder_is_made_and_shown(tmp_path: Path) -> None:
    model, out = write_tiny(tmp_path / "tiny"), tmp_path / "out"
    command = ["quantize", str(model), str(out), "--method", "rtn", "--asymmetric"]
    done = RUN.invoke(app, [*command, "--group-size", "32", "--ignore", "model.layers.1"])
    assert done.exit_code == 0, done.output
    assert "rtn, 4 bits, asymmetric, a scale for: 32 columns" in done.output
    assert "rounded matrices" in done.output and "model.layers.1.mlp.up_proj" in done.output
    assert open_checkpoint(out).quantization == "compressed-tensors pack-quantized int4 group 32"
    again = RUN.invoke(app, [*command, "--json"])
    assert again.exit_code == 1 and "--overwrite" in again.output
    done = RUN.invoke(app, [*command, "--json", "--overwrite", "--bits", "8"])
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["num_matrices"] == 14 and said["recipe"]["symmetric"] is False


def test_a_native_folder_is_made_shown_and_run(tmp_path: Path) -> None:
    model, out = write_tiny(tmp_path / "tiny"), tmp_path / "out"
    save_byte_tokenizer(model)
    command = ["quantize", str(model), str(out), "--method", "rtn", "--format", "native"]
    done = RUN.invoke(app, command)
    assert done.exit_code == 0, done.output
    done = RUN.invoke(app, ["info", str(out), "--weights", "packed"])
    assert done.exit_code == 0 and "native" in done.output and "int4" in done.output
    done = RUN.invoke(app, ["convert", str(out), str(tmp_path / "again"), "--json"])
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["quantization"].startswith("compressed-tensors pack-quantized int4")
    done = RUN.invoke(app, ["convert", str(model), str(tmp_path / "float")])
    assert "none (f32)" in done.output and done.exit_code == 0
    done = RUN.invoke(app, ["convert", str(model), str(tmp_path / "float")])
    assert done.exit_code == 1 and "--overwrite" in done.output


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--method", "gtpq"], "nearest: 'gptq'"),
        (["--method", "gptq"], "needs calibration"),
        (["--method", "rtn", "--group-size", "all"], "must be auto, -1"),
        (["--method", "rtn", "--damping", "0.1"], "means nothing to method='rtn'"),
        ([], "--method is missing"),
        (["--method", "rtn", "--sensitivity-by", "layer"], "which nothing asks for"),
        (["--method", "rtn", "--protect", "1", "--protect", "2"], "one number of layers"),
    ],
)
def test_what_is_wrong_is_one_message(arguments: list[str], said: str, tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "tiny")
    save_byte_tokenizer(model)
    done = RUN.invoke(app, ["quantize", str(model), str(tmp_path / "out"), *arguments])
    assert done.exit_code == 1 and said in done.output
    assert "Traceback" not in done.output


@pytest.fixture
def ranked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What was asked of a ranking in which layer 1 is the worst."""
    monkeypatch.setenv("COLUMNS", "120")
    calls: list[dict[str, Any]] = []

    def rank(model: str, **options: Any) -> Ranking:
        calls.append(options)
        rows = tuple(
            Sensitivity(
                name=f"model.layers.{number}",
                num_elements=1000,
                kl_mean=kl,
                kl_max=9 * kl,
                top1_agreement=0.9,
                nats=2.0,
            )
            for number, kl in enumerate((0.01, 0.03))
        )
        scheme = {name: options[name] for name in ("bits", "group_size", "part")}
        return Ranking(model=model, fingerprint="", rows=rows, **scheme)

    monkeypatch.setattr(sensitivity, "rank_sensitivity", rank)
    return calls


def test_a_ranking_alone(ranked: list[dict[str, Any]], tmp_path: Path) -> None:
    """Without OUT nothing is made; the worst layer comes first."""
    file = tmp_path / "ranking.json"
    command = ["quantize", "m", "--sensitivity", "--group-size", "64", "--sensitivity-by", "layer"]
    done = RUN.invoke(app, [*command, "--sensitivity-file", str(file)])
    assert done.exit_code == 0, done.output
    lines = [line for line in done.output.splitlines() if "model.layers" in line]
    assert ["model.layers.1" in line for line in lines] == [True, False] and "3.00e-02" in lines[0]
    (asked,) = ranked
    assert (asked["bits"], asked["group_size"], asked["part"]) == (4, 64, "layer")
    assert asked["file"] == str(file) and asked["text"] == held_out_text()
    done = RUN.invoke(app, [*command, "--json"])
    assert json.loads(done.stdout)["rows"][1]["kl_mean"] == 0.03


def test_a_ranking_s_picture(ranked: list[dict[str, Any]], tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    matplotlib.use("Agg")
    picture = tmp_path / "a.png"
    command = ["quantize", "m", "--sensitivity", "--sensitivity-plot", str(picture)]
    assert RUN.invoke(app, command).exit_code == 0
    assert picture.stat().st_size > 1000
    done = RUN.invoke(app, [*command[:-1], str(tmp_path / "a.txt9")])
    assert done.exit_code == 1 and "--sensitivity-plot" in done.output


@pytest.mark.parametrize(
    ("protect", "floats"),
    [
        (["1"], ["model.layers.1"]),
        (["0"], []),
        (["1", "model.layers.0.mlp"], ["model.layers.0.mlp", "model.layers.1"]),
    ],
)
def test_as_many_of_the_worst_stay_float(
    ranked: list[dict[str, Any]], tmp_path: Path, protect: list[str], floats: list[str]
) -> None:
    model, out = write_tiny(tmp_path / "tiny"), tmp_path / "out"
    command = ["quantize", str(model), str(out), "--method", "rtn", "--bits", "8", "--json"]
    done = RUN.invoke(app, [*command, *(part for one in protect for part in ("--protect", one))])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert {name for name in said["floats"] if name.startswith(tuple(floats))} == set(
        said["floats"]
    )
    assert {one for one in floats for name in said["floats"] if name.startswith(one)} == set(floats)
    assert [one["bits"] for one in ranked] == ([8] if protect != ["0"] else [])


def test_without_out_there_is_nothing_to_make() -> None:
    done = RUN.invoke(app, ["quantize", "m", "--method", "rtn"])
    assert done.exit_code == 1 and "OUT is missing" in done.output
