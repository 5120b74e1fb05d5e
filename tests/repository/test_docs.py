"""Everything that README and docs/ show is run, with a tiny model in the place of the real ones."""

import contextlib
import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import jaxinfer
import jaxinfer.jobs
from jaxinfer.jobs.cli import app
from tests.repository.doc_blocks import Block, pages, read_blocks, read_page
from tests.repository.tree import ROOT
from tests.support.tiny_models import write_tiny_gguf

SHELL_SIGNS = set("|<>&;$`*")
QUICK = ("README.md",)  # the others are run by make test-all


def test_pages_are_read_as_the_comments_say() -> None:
    text = (
        "<!-- not run: another -->\na\n\n<!-- exits with 2 -->\n<!-- prints: x | y z -->\n"
        "```bash\none \\\n  two  # why\n# no\n```\n* item\n\n"
        "  ```python\n  if a:\n      b\n  ```\n<!-- not run: a GPU -->\n\n```bash\nc\n```\n"
    )
    first, second, third = read_blocks("p.md", text)
    assert first.commands == ["one    two"] and first.place == "p.md:6"
    assert (first.exit_code, first.prints) == (2, ("x", "y z"))
    assert second.text == "if a:\n    b\n" and second.not_run is None
    assert third.not_run == "a GPU" and third.exit_code == 0
    with pytest.raises(ValueError, match="p.md:1: 'sh' must be"):
        read_blocks("p.md", "```sh\na\n```\n")
    with pytest.raises(ValueError, match="'ignore' means nothing"):
        read_blocks("p.md", "<!-- ignore -->\n```bash\na\n```\n")


def test_what_is_not_run_says_why() -> None:
    blocks = [block for page in pages() for block in read_page(page)]
    assert sum(block.is_run for block in blocks) > 20
    for block in blocks:
        assert block.not_run is None or len(block.not_run) > 10, block.place


def test_excerpts_are_what_the_files_hold() -> None:
    for page in pages():
        for block in read_page(page):
            lines = [line.strip() for line in block.text.splitlines() if line.strip()]
            source = (ROOT / block.excerpt_of).read_text("utf-8") if block.excerpt_of else ""
            held = iter([line.strip() for line in source.splitlines()])
            for line in lines if block.excerpt_of else ():
                assert line in held, f"{block.place}: {block.excerpt_of} has no {line!r} there"


def test_json_that_is_shown_is_json() -> None:
    for page in pages():
        for block in read_page(page):
            for line in block.text.splitlines() if block.language == "json" else ():
                assert isinstance(json.loads(line), dict), block.place


def test_the_api_page_names_everything_that_is_public() -> None:
    text = (ROOT / "docs" / "python_api.md").read_text(encoding="utf-8")
    names = [f"::: jaxinfer.{name}\n" for name in jaxinfer.__all__]
    names += [f"::: jaxinfer.jobs.{name}\n" for name in jaxinfer.jobs.__all__]
    assert not [name for name in names if name not in text]


def test_every_page_is_in_the_navigation() -> None:
    listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = [Path(page).relative_to("docs").as_posix() for page in pages() if page != "README.md"]
    assert not [page for page in named if f": {page}\n" not in listed]


@pytest.fixture
def shell_desk(desk: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The desk, with a GGUF file on it and `jaxinfer` as a command of the shell."""
    write_tiny_gguf(desk / "model.gguf", types={"ffn": "Q8_0"})
    command = desk / "bin" / "jaxinfer"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m jaxinfer.jobs.cli "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return desk


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=() if page in QUICK else pytest.mark.slow) for page in pages()],
)
def test_what_a_page_shows_can_be_run(page: str, shell_desk: Path) -> None:
    names: dict[str, Any] = {"__name__": page}
    try:
        for block in read_page(page):
            if block.file is not None:
                (shell_desk / block.file).write_text(block.text, encoding="utf-8")
            elif block.is_run:
                run_block(block, names)
    finally:
        for value in names.values():
            if isinstance(value, jaxinfer.LLM):
                value.close()


def run_block(block: Block, names: dict[str, Any]) -> None:
    if block.language == "python":
        printed = run_python(block, names)
    else:
        printed = "".join(run_command(block, command) for command in block.commands)
    for wanted in block.prints:
        assert wanted in printed, f"{block.place} prints no {wanted!r}:\n{printed}"


def run_python(block: Block, names: dict[str, Any]) -> str:
    printed = io.StringIO()
    code = compile("\n" * block.line + block.text, str(ROOT / block.page), "exec")
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        exec(code, names)
    return printed.getvalue()


def run_command(block: Block, command: str) -> str:
    """Runs a command, in this process where it is jaxinfer's alone; what it printed."""
    first, *arguments = shlex.split(command)
    is_last = command == block.commands[-1]
    wanted = block.exit_code if is_last else 0
    if first == "jaxinfer" and not SHELL_SIGNS & set(command):
        done = CliRunner().invoke(app, arguments)
        code, printed = done.exit_code, done.output
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    else:
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        code, printed = ran.returncode, ran.stdout
    assert code == wanted, f"{block.place}: {command} ended with {code}:\n{printed}"
    return printed


@pytest.mark.slow
def test_the_pages_build_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the docs extra is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "python_api" / "index.html").read_text(encoding="utf-8")
    assert "max_model_len" in page and "temperature" in page
