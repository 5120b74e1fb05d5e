"""What pyproject.toml, the Makefile and CI promise each other."""

import os
import re
import tomllib

import pytest

from tests.repository.tree import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_run_time_needs_no_torch() -> None:
    names = [re.split(r"[<>=\[; ]", line)[0] for line in PROJECT["project"]["dependencies"]]
    assert "jax" in names and not {"torch", "transformers"} & set(names)


def test_versions_agree() -> None:
    import jaxinfer

    if jaxinfer.__version__ == "0+unknown":
        pytest.skip("jaxinfer is not installed here: its version is known to pip alone")
    assert jaxinfer.__version__ == PROJECT["project"]["version"]


def test_the_oldest_python_is_named_once() -> None:
    oldest = PROJECT["project"]["requires-python"].removeprefix(">=")
    assert PROJECT["tool"]["pyright"]["pythonVersion"] == oldest
    assert PROJECT["tool"]["ruff"]["target-version"] == "py" + oldest.replace(".", "")
    assert f"({oldest.replace('.', ', ')})" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_ci_calls_make_test() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    text = script.read_text(encoding="utf-8")
    assert "set -euo pipefail" in text and "make test" in text


def test_jax_is_strict_in_tests() -> None:
    jnp = pytest.importorskip("jax.numpy")
    with pytest.raises(ValueError, match="rank_promotion|different ranks"):
        jnp.zeros((2, 2)) + jnp.zeros(2)
    with pytest.raises(Exception, match="[Pp]romotion"):
        jnp.zeros(2, jnp.float32) + jnp.zeros(2, jnp.int8)
