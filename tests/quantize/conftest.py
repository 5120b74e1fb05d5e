"""A calibration text, tiny models with a tokenizer, and logits of what is made of them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.byte_tokenizer import save_byte_tokenizer
from tests.support.forward_logits import forward_logits as forward_logits
from tests.support.tiny_models import write_tiny

CALIBRATED = {"calibration_tokens": 512, "sequence_length": 32}


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few thousand bytes of English."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    sentence = "The sea is salt because rivers carry salt into it, {} years and more. "
    path.write_text("".join(sentence.format(year) for year in range(100)), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def low_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Numbers, whose bytes are ids that small vocabularies have too."""
    path = tmp_path_factory.mktemp("low_text") / "text.txt"
    path.write_text(" ".join(str(n * n * n) for n in range(900)), encoding="utf-8")
    return path


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., Path]:
    """(name, **options of `write_tiny`) → a folder with a tokenizer."""

    def write(name: str = "tiny", **options: object) -> Path:
        folder = write_tiny(tmp_path / name, **options)  # type: ignore[arg-type]
        save_byte_tokenizer(folder)
        return folder

    return write
