"""Codes out of words and into bytes, against a packer that goes one code at a time."""

import numpy as np
import pytest

from jaxinfer.checkpoint.bit_fields import (
    num_words,
    pack_fields,
    pack_nibbles,
    unpack_fields,
    unpack_nibbles,
)
from tests.support.quant_folders import pack_words


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("count", [32, 40, 64])
def test_fields_come_back(bits: int, count: int) -> None:
    """Of 3 bits too, where a code may lie in two words."""
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (5, count)).astype(np.uint8)
    words = pack_words(codes, bits)
    assert words.shape == (5, num_words(count, bits))
    np.testing.assert_array_equal(unpack_fields(words, bits, 1)[:, :count], codes)
    np.testing.assert_array_equal(unpack_fields(words.T, bits, 0)[:count], codes.T)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("count", [32, 37, 4])
def test_packed_fields_are_the_packer_s(bits: int, count: int) -> None:
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (5, count)).astype(np.uint8)
    np.testing.assert_array_equal(pack_fields(codes, bits, 1), pack_words(codes, bits))
    np.testing.assert_array_equal(pack_fields(codes, bits, 0), pack_words(codes.T, bits).T)


def test_the_lowest_bits_come_first() -> None:
    word = np.array([[0x87654321]], np.uint32).view(np.int32)
    assert unpack_fields(word, 4, 1).tolist() == [[1, 2, 3, 4, 5, 6, 7, 8]]


def test_columns_of_a_view_are_unpacked() -> None:
    """A reader takes columns out of the middle of a mapped tensor."""
    words = np.arange(40, dtype=np.int32).reshape(4, 10)
    found = unpack_fields(words[:, 3:7], 8, 0)
    np.testing.assert_array_equal(found, unpack_fields(words, 8, 0)[:, 3:7])


@pytest.mark.parametrize("columns", [1, 6, 7])
def test_nibbles_are_signed_and_the_even_column_is_low(columns: int) -> None:
    assert pack_nibbles(np.array([[1, 2, -8, -1]], np.int8)).tolist() == [[0x21, 0xF8]]
    codes = np.random.default_rng(0).integers(-8, 8, (3, columns)).astype(np.int8)
    packed = pack_nibbles(codes)
    assert packed.shape == (3, -(-columns // 2)) and packed.dtype == np.uint8
    np.testing.assert_array_equal(unpack_nibbles(packed)[:, :columns], codes)
