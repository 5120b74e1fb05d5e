"""The byte tokenizer, made once."""

import pytest

from jaxinfer.text.tokenizer import Tokenizer
from tests.support.byte_tokenizer import byte_tokenizer


@pytest.fixture(scope="package")
def tokenizer() -> Tokenizer:
    return byte_tokenizer()
