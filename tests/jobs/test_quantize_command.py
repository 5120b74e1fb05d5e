"""`jaxinfer quantize`, with tiny models."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from jaxinfer.checkpoint.checkpoint import open_checkpoint
from jaxinfer.jobs.cli import app
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


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--method", "gtpq"], "nearest: 'gptq'"),
        (["--method", "gptq"], "needs calibration"),
        (["--method", "rtn", "--group-size", "all"], "must be auto, -1"),
        (["--method", "rtn", "--damping", "0.1"], "means nothing to method='rtn'"),
        ([], "Missing option"),
    ],
)
def test_what_is_wrong_is_one_message(arguments: list[str], said: str, tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "tiny")
    done = RUN.invoke(app, ["quantize", str(model), str(tmp_path / "out"), *arguments])
    assert done.exit_code == 1 and said in done.output
    assert "Traceback" not in done.output
