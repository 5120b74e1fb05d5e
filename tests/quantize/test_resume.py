"""A run that ends half-way, however it ends, goes on to the same bytes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from jaxinfer.checkpoint.checkpoint import open_checkpoint
from jaxinfer.errors import CapacityError
from jaxinfer.quantize import convert, ct_weights, quantize_model
from tests.quantize.conftest import CALIBRATED
from tests.repository.tree import ROOT


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def options(text: Path, method: str = "awq") -> dict[str, Any]:
    return {"method": method, "calibration": text, "show_progress": False, **CALIBRATED}


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_a_failed_run_goes_on_where_it_ended(
    method: str, tiny: Any, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(num_hidden_layers=3)
    whole = quantize_model(model, tmp_path / "whole", **options(text, method))
    write, written = ct_weights.CtWeights.write_layer, []

    def fails_at(number: int) -> None:
        def write_layer(self: Any, at: int, *rest: Any) -> None:
            written.append(at)
            if at == number:
                raise CapacityError("the disk is full")
            write(self, at, *rest)

        monkeypatch.setattr(ct_weights.CtWeights, "write_layer", write_layer)

    for number in (1, 2, 9):
        fails_at(number)
        if number < 9:
            with pytest.raises(CapacityError):
                quantize_model(model, tmp_path / "parts", **options(text, method))
            assert not (tmp_path / "parts").exists()
    parts = quantize_model(model, tmp_path / "parts", **options(text, method))
    assert written == [0, 1, 1, 2, 2], "finished layers are not made again"
    assert contents(parts.path) == contents(whole.path)


@pytest.mark.parametrize("last", ["write_native", "drop_quantization", "open_checkpoint"])
def test_a_native_result_goes_on_too(
    last: str, tiny: Any, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it ended after the layers: while parts were written, or while it tidied up."""
    recipe: dict[str, Any] = {"method": "rtn", "format": "native", "show_progress": False}
    model, calls = tiny(), []
    do = getattr(convert, last)

    def fails_at_last(*arguments: Any, **more: Any) -> Any:
        result = do(*arguments, **more)
        calls.append(result)
        if len(calls) == (2 if last == "open_checkpoint" else 1):
            raise CapacityError("the disk is full")
        return result

    monkeypatch.setattr(convert, last, fails_at_last)
    with pytest.raises(CapacityError):
        quantize_model(model, tmp_path / "out", **recipe)
    assert not (tmp_path / "out").exists()
    made = quantize_model(model, tmp_path / "out", **recipe)
    monkeypatch.undo()
    assert made.bytes == quantize_model(model, tmp_path / "other", **recipe).bytes
    assert sorted(path.name for path in made.path.iterdir()) == sorted(
        path.name for path in (tmp_path / "other").iterdir()
    )
    assert open_checkpoint(made.path).quantization.endswith("int4 group 32")


@pytest.mark.slow
def test_kill_9_in_the_middle(tiny: Any, text: Path, tmp_path: Path) -> None:
    model = tiny(num_hidden_layers=12)
    whole = quantize_model(model, tmp_path / "whole", **options(text))
    command = [sys.executable, "-m", "jaxinfer.jobs.cli", "quantize", str(model), "out"]
    command += ["--method", "awq", "--calibration", str(text), "--calibration-tokens", "512"]
    command += ["--sequence-length", "32"]
    partial, kills = tmp_path / "out.partial", 0
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for wanted in (3, 8):
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE)
        while process.poll() is None and len(list(partial.glob("*.safetensors"))) < wanted:
            time.sleep(0.002)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.communicate()
        assert not (tmp_path / "out").exists()
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert kills == 2 and not partial.exists()
    assert contents(tmp_path / "out") == contents(whole.path)
