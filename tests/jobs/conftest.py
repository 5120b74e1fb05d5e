"""The command line with a fake LLM in the place of the real one."""

import pytest
from typer.testing import CliRunner

from jaxinfer.jobs import session
from tests.jobs.fake_llm import FakeLLM


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[FakeLLM]:
    """The models that commands have opened."""
    models: list[FakeLLM] = []

    def open_llm(model: str, **options: object) -> FakeLLM:
        models.append(FakeLLM(model, **options))
        return models[-1]

    monkeypatch.setattr(session, "open_llm", open_llm)
    return models


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setenv("COLUMNS", "120")
    return CliRunner()
