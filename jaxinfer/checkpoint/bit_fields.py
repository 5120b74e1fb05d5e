"""HOST. Small integers packed into larger ones, least significant first, apart and together.

Knows no format: which axis is packed and what a code means is the reader's business.
"""

import numpy as np


def unpack_fields(words: np.ndarray, bits: int, axis: int) -> np.ndarray:
    """The codes of `bits` bits in 32-bit words, u8, along `axis`.

    Codes form one stream of bits that words cut, so 32 codes of 3 bits take three words.
    Example: 4 bits, word 0x87654321 → 1 2 3 4 5 6 7 8.

    Args:
        words: i32 of two axes. bits: 2, 3, 4 or 8. axis: 0 or 1.
    """
    rows = np.ascontiguousarray(words.T if axis == 0 else words).astype("<i4", copy=False)
    packed = rows.view(np.uint8)
    if bits == 8:
        codes = packed
    elif bits == 3:
        stream = np.unpackbits(packed, axis=1, bitorder="little")
        fields = stream[:, : stream.shape[1] // 3 * 3].reshape(len(rows), -1, 3)
        codes = fields[..., 0] | fields[..., 1] << 1 | fields[..., 2] << 2
    else:
        mask = np.uint8((1 << bits) - 1)
        fields = [packed >> np.uint8(shift) & mask for shift in range(0, 8, bits)]
        codes = np.stack(fields, axis=-1).reshape(len(rows), -1)
    return codes.T if axis == 0 else codes


def pack_fields(codes: np.ndarray, bits: int, axis: int) -> np.ndarray:
    """32-bit words of codes of 4 or 8 bits from 0 on, along `axis`; the inverse of `unpack_fields`.

    The last word is filled with zeros.
    Example: 4 bits, 1 2 3 4 5 6 7 8 → word 0x87654321.

    Args:
        codes: u8 of two axes. bits: 4 or 8. axis: 0 or 1.
    """
    rows = np.ascontiguousarray(codes.T if axis == 0 else codes)
    rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % (32 // bits))))
    if bits == 4:
        rows = rows[:, ::2] | rows[:, 1::2] << np.uint8(4)
    words = np.ascontiguousarray(rows).view("<i4").astype(np.int32, copy=False)
    return np.ascontiguousarray(words.T) if axis == 0 else words


def num_words(count: int, bits: int) -> int:
    """32-bit words that hold `count` codes."""
    return -(-count * bits // 32)


def pack_nibbles(codes: np.ndarray) -> np.ndarray:
    """[rows, in] signed codes of 4 bits → [rows, ceil(in/2)] u8, the even column in the low half.

    Example: [[1 2 -8 -1]] → [[0x21 0xF8]].
    """
    if codes.shape[1] % 2:
        codes = np.pad(codes, ((0, 0), (0, 1)))
    low = codes[:, ::2].astype(np.uint8) & np.uint8(15)
    return low | codes[:, 1::2].astype(np.uint8) << np.uint8(4)


def unpack_nibbles(packed: np.ndarray) -> np.ndarray:
    """[rows, n] u8 → [rows, 2·n] signed codes, i8; the inverse of `pack_nibbles`."""
    both = packed.view(np.int8)
    low = np.left_shift(both, 4) >> 4
    return np.stack([low, both >> 4], axis=-1).reshape(len(packed), -1)
