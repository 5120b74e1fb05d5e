import numpy as np
import pytest

from jaxinfer.errors import ConfigError
from jaxinfer.quantize.calibration import token_blocks
from tests.support.byte_tokenizer import BOS, byte_tokenizer

TEXT = bytes(n % 90 + 33 for n in range(1000)).decode()


def test_blocks_come_evenly_from_the_whole_text() -> None:
    blocks = token_blocks(TEXT, byte_tokenizer(), num_tokens=256, sequence_length=64)
    assert blocks.shape == (4, 64) and blocks.dtype == np.int32
    whole = np.frombuffer(TEXT.encode(), np.uint8)
    for block, start in zip(blocks, (0, 3 * 64, 7 * 64, 11 * 64), strict=True):
        assert (block == whole[start : start + 64]).all()


def test_each_block_begins_as_a_prompt_does() -> None:
    blocks = token_blocks(TEXT, byte_tokenizer(adds_bos=True), num_tokens=100, sequence_length=64)
    assert blocks.shape == (2, 64) and (blocks[:, 0] == BOS).all()
    assert (blocks[0, 1:] == np.frombuffer(TEXT.encode(), np.uint8)[:63]).all()


def test_a_text_that_is_too_short_says_how_many_tokens_it_has() -> None:
    with pytest.raises(ConfigError, match="has 1,000 tokens, 16 blocks of 64 take 1,024"):
        token_blocks(TEXT, byte_tokenizer(), num_tokens=1024, sequence_length=64)
    with pytest.raises(ConfigError, match="has 0 tokens"):
        token_blocks("", byte_tokenizer(), num_tokens=2, sequence_length=2)
