"""Every notebook is executed, stored without outputs, and holds no logic of its own."""

import ast
import io
import json
import os
import subprocess
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

import jaxinfer
from tests.repository.tree import ROOT, tracked_files
from tests.support.demo import demo_path

NOTEBOOKS = [path for path in tracked_files() if path.suffix == ".ipynb"]
QUICK = "00_quickstart.ipynb"
MAX_SECONDS = 120
# What a notebook must not define or decide itself: it calls what is tested elsewhere.
LOGIC = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.While)


def code_cells(path: Path) -> list[str]:
    cells = json.loads((ROOT / path).read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def names(path: Path) -> str:
    return path.name


def test_there_are_notebooks() -> None:
    assert QUICK in map(names, NOTEBOOKS)
    assert all(path.parts[0] == "notebooks" for path in NOTEBOOKS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=names)
def test_notebooks_are_stored_without_outputs(path: Path) -> None:
    content = json.loads((ROOT / path).read_text(encoding="utf-8"))
    assert content["nbformat"] == 4
    for cell in content["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=names)
def test_notebooks_have_no_logic_of_their_own(path: Path) -> None:
    for number, cell in enumerate(code_cells(path)):
        nodes = ast.walk(ast.parse(cell))
        assert not [node for node in nodes if isinstance(node, LOGIC)], f"code cell {number}"


def execute(path: Path) -> str:
    """Runs the code cells in one namespace, here; what they printed."""
    printed, shared = io.StringIO(), dict[str, Any](__name__="__main__")
    try:
        with redirect_stdout(printed):
            for number, cell in enumerate(code_cells(path)):
                exec(compile(cell, f"{path.name}[{number}]", "exec"), shared)
    finally:
        for value in shared.values():
            if isinstance(value, jaxinfer.LLM):
                value.close()
    return printed.getvalue()


@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=() if p.name == QUICK else pytest.mark.slow) for p in NOTEBOOKS],
    ids=names,
)
def test_notebooks_run_with_a_tiny_model(path: Path, desk: Path) -> None:
    if "plot" in "".join(code_cells(path)):
        pytest.importorskip("matplotlib", reason="the plot extra is not installed").use("Agg")
    assert execute(path)


@pytest.mark.slow
@pytest.mark.weights
@pytest.mark.parametrize("path", NOTEBOOKS, ids=names)
def test_notebooks_take_under_two_minutes_with_the_real_model(path: Path, tmp_path: Path) -> None:
    demo_path("smollm2-135m")
    if "plot" in "".join(code_cells(path)):
        pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    script = tmp_path / "cells.py"
    script.write_text("\n\n".join(code_cells(path)), encoding="utf-8")
    places = {"PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, **places},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - start < MAX_SECONDS
