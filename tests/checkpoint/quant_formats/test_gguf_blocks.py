"""GGUF blocks kept packed, against the gguf package's own decoding of random blocks."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from jaxinfer.checkpoint.gguf_file import open_gguf
from jaxinfer.checkpoint.gguf_header import BLOCK_TYPES
from jaxinfer.checkpoint.leaf_source import PackedMatrix
from jaxinfer.checkpoint.quant_formats.gguf_blocks import GgufBlocks
from tests.support.gguf_writer import write_gguf

IDS = {block.name: number for number, block in BLOCK_TYPES.items()}
PACKABLE = {
    "Q4_0": ("int4", 32, "none"),
    "Q4_1": ("int4", 32, "offsets"),
    "Q5_0": ("int8", 32, "none"),
    "Q5_1": ("int8", 32, "offsets"),
    "Q8_0": ("int8", 32, "none"),
    "Q4_K": ("int4", 32, "offsets"),
    "Q5_K": ("int8", 32, "offsets"),
    "Q6_K": ("int8", 16, "none"),
    "MXFP4": ("int8", 32, "none"),
}
HALVES = {  # where the f16 values of a block lie
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q6_K": (208,),
}
SHAPE = (40, 512)


def random_blocks(name: str) -> np.ndarray:
    """[rows, bytes of a row]: any bytes, but scales that are numbers."""
    block, random = BLOCK_TYPES[IDS[name]], np.random.default_rng(IDS[name])
    count = SHAPE[0] * SHAPE[1] // block.num_elements
    blocks = random.integers(0, 256, (count, block.num_bytes)).astype(np.uint8)
    for place in HALVES.get(name, ()):
        halves = random.normal(0, 0.1, (count, 1)).astype(np.float16)
        blocks[:, place : place + 2] = halves.view(np.uint8)
    if name == "MXFP4":  # an exponent
        blocks[:, 0] = random.integers(100, 150, count)
    return blocks.reshape(SHAPE[0], -1)


def matrix_of(folder: Path, name: str, blocks: np.ndarray) -> PackedMatrix | None:
    path = write_gguf(
        folder / "m.gguf", {}, {"x.weight": blocks}, types={"x.weight": (IDS[name], SHAPE)}
    )
    return GgufBlocks(open_gguf(path)).matrix("x", SHAPE)


@pytest.mark.parametrize("name", PACKABLE)
def test_decoded_to_the_same_bits(tmp_path: Path, name: str) -> None:
    blocks = random_blocks(name)
    matrix = matrix_of(tmp_path, name, blocks)
    assert matrix is not None
    expected = dequantize(blocks, GGMLQuantizationType[name])
    found = matrix.read_floats(0, SHAPE[0])
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(matrix.read_floats(32, 40), expected[32:])
    assert (matrix.form.codes, matrix.form.group, matrix.form.addend) == PACKABLE[name]


def test_codes_of_the_smallest_and_largest_value(tmp_path: Path) -> None:
    """Q4_0: code 0 is -8 times the scale, code 15 is 7 times."""
    blocks = np.zeros((SHAPE[0], SHAPE[1] // 32 * 18), np.uint8)
    parts = blocks.reshape(-1, 18)
    parts[:, :2] = np.array([[0.5]], np.float16).view(np.uint8)
    parts[:, 2] = 0xF0
    matrix = matrix_of(tmp_path, "Q4_0", blocks)
    assert matrix is not None
    found = matrix.read_floats(0, SHAPE[0])[0]
    assert (found[0], found[16]) == (-4.0, 3.5)


@pytest.mark.parametrize("name", ["Q2_K", "Q3_K", "IQ4_NL", "IQ2_S", "F16"])
def test_the_other_types_are_decoded_at_load(tmp_path: Path, name: str) -> None:
    assert matrix_of(tmp_path, name, random_blocks(name)) is None
