"""Engines for tests: small, and with one cache of compiled programs for the whole session."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxinfer import LLM
from tests.end_to_end.engines import SMALL, assert_drained
from tests.support.byte_tokenizer import save_byte_tokenizer
from tests.support.tiny_models import write_tiny

OpenLLM = Callable[..., LLM]


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of compiled programs: equal ones are compiled once a session."""
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="session")
def open_llm(programs: Path) -> OpenLLM:
    """`LLM` with the small settings."""

    def open_one(model: Path, **options: Any) -> LLM:
        kept = {"compilation_cache_dir": str(programs), "show_progress": False}
        return LLM(model, **{**SMALL, **kept, **options})

    return open_one


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TINY with the BYTE tokenizer; EOS is `<end>`."""
    folder = write_tiny(tmp_path_factory.mktemp("tiny"), eos_token_id=256)
    save_byte_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def _shared_tiny(open_llm: OpenLLM, tiny_folder: Path) -> Iterator[LLM]:
    with open_llm(tiny_folder, max_num_seqs=8) as llm:
        yield llm


@pytest.fixture
def tiny(_shared_tiny: LLM) -> Iterator[LLM]:
    """One engine of TINY with eight slots; a test must leave it with every page free."""
    yield _shared_tiny
    assert_drained(_shared_tiny)
