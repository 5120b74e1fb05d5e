"""A desk on which what README, docs/ and notebooks show can be run in seconds."""

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from jaxinfer.config import geometry
from jaxinfer.engine import build
from tests.end_to_end.conftest import KeptPrograms
from tests.support.byte_tokenizer import save_byte_tokenizer
from tests.support.tiny_models import write_tiny

DEMO_NAMES = ("smollm2-135m", "gemma3-270m")
MAX_TOKENS = 512
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.fixture(scope="session")
def _kept_programs() -> KeptPrograms:
    return KeptPrograms()


@pytest.fixture(scope="session")
def _cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def desk(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    _kept_programs: KeptPrograms,
    _cache_folder: Path,
) -> Iterator[Path]:
    """The folder to work in, where the names of the demo models are tiny models.

    What is on the disk comes before demo names. Engines have one decode and one prefill program,
    and those of equal engines are compiled once a session.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("XDG_CACHE_HOME", str(_cache_folder))  # instead of the user's
    for name in DEMO_NAMES:
        write_tiny(tmp_path / name, max_position_embeddings=MAX_TOKENS, eos_token_id=256)
        save_byte_tokenizer(tmp_path / name, chat_template=TEMPLATE)
    with (
        mock.patch.object(build, "compile_programs", _kept_programs),
        mock.patch.object(geometry, "_decode_widths", lambda slots, device: (slots,)),
        mock.patch.object(geometry, "_prefill_rows", lambda ask, chunk: (1,)),
    ):
        yield tmp_path
