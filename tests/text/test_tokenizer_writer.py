from pathlib import Path

import pytest

from jaxinfer.text.tokenizer import Tokenizer, tokenizer_from_folder
from jaxinfer.text.tokenizer_writer import tokenizer_files
from tests.support.byte_tokenizer import byte_tokenizer


def written(tokenizer: Tokenizer, folder: Path) -> Tokenizer:
    for name, text in tokenizer_files(tokenizer, max_tokens=512).items():
        (folder / name).write_text(text, encoding="utf-8")
    found = tokenizer_from_folder(folder)
    assert found is not None
    return found


@pytest.mark.parametrize("adds_bos", [True, False])
@pytest.mark.parametrize(
    "templates", [{}, {"default": "{{ a }}"}, {"default": "x", "tool_use": "y"}]
)
def test_it_reads_back(adds_bos: bool, templates: dict[str, str], tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(adds_bos=adds_bos, chat_templates=templates)
    back = written(tokenizer, tmp_path)
    text = "Ein Fluß <end> und mehr"
    assert back.encode(text) == tokenizer.encode(text)
    assert back.chat_templates == templates
    assert back.special_tokens == tokenizer.special_tokens
    assert back.bos_token_id == tokenizer.bos_token_id
