"""GGUF files: decoding in blocks of rows, and split models."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from jaxinfer.checkpoint.gguf_file import open_gguf
from jaxinfer.checkpoint.gguf_header import BLOCK_TYPES
from jaxinfer.errors import CheckpointError
from tests.support.gguf_writer import write_gguf
from tests.support.tiny_models import write_tiny_gguf

FIXTURES = Path(__file__).parents[1] / "data/quant"


def all_tensors(path: Path) -> dict[str, np.ndarray]:
    source = open_gguf(path)
    return {
        name: source.read_rows(name, 0, info.shape[0], np.float32)
        for name, info in source.infos.items()
    }


@pytest.mark.parametrize("number", BLOCK_TYPES)
def test_blocks_of_rows_decode_as_the_whole(tmp_path: Path, number: int) -> None:
    """Random bytes are a valid tensor of any block type; odd sizes leave a tail to decode."""
    block, shape = BLOCK_TYPES[number], (7, 5 * 256)
    num_bytes = shape[0] * shape[1] // block.num_elements * block.num_bytes
    raw = np.random.default_rng(number).integers(0, 64, num_bytes).astype(np.uint8)
    path = write_gguf(tmp_path / "m.gguf", {}, {"x": raw}, types={"x": (number, shape)})
    source = open_gguf(path)
    assert source.infos["x"].dtype_name == block.name
    whole = source.read_rows("x", 0, 7, np.float32)
    if block.name == "F64":
        expected = raw.view(np.float64).astype(np.float32)
    else:
        expected = dequantize(raw, gguf.GGMLQuantizationType(number))
    np.testing.assert_array_equal(whole, expected.reshape(shape))
    for start, stop in ((0, 1), (2, 6), (6, 7)):
        np.testing.assert_array_equal(
            source.read_rows("x", start, stop, np.float32), whole[start:stop]
        )


def test_quantized_tensor_of_one_axis(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal(96).astype(np.float32)
    raw = quantize(values, gguf.GGMLQuantizationType.Q8_0)
    path = write_gguf(tmp_path / "m.gguf", {}, {"x": raw}, types={"x": (8, (96,))})
    np.testing.assert_allclose(open_gguf(path).read_rows("x", 0, 96, np.float32), values, atol=0.02)


def test_three_axes(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.float16).reshape(2, 3, 4)
    path = write_gguf(tmp_path / "m.gguf", {}, {"x": values})
    source = open_gguf(path)
    assert source.infos["x"].shape == (2, 3, 4)
    np.testing.assert_array_equal(source.read_rows("x", 1, 2, np.float32), values[1:])


@pytest.mark.parametrize("name", sorted(path.name for path in FIXTURES.glob("gguf_*")))
def test_reads_files_of_others_as_the_gguf_package_does(name: str) -> None:
    path = FIXTURES / name / "model.gguf"
    theirs = gguf.GGUFReader(path)
    source = open_gguf(path)
    assert set(source.infos) == {tensor.name for tensor in theirs.tensors}
    for tensor in theirs.tensors:
        expected = dequantize(tensor.data, tensor.tensor_type)
        rows = source.read_rows(tensor.name, 0, len(expected), np.float32)
        np.testing.assert_array_equal(rows, expected)
    for key, value in source.metadata.items():
        assert theirs.fields[key].contents() == value


def test_split_model_is_the_whole_model(tmp_path: Path) -> None:
    """BB-08 (transformers#32266, wllama#135): only the first part was read."""
    first = write_tiny_gguf(tmp_path / "tiny.gguf", num_parts=3)
    one = write_tiny_gguf(tmp_path / "one.gguf")
    split, whole = all_tensors(first), all_tensors(one)
    assert split.keys() == whole.keys() and len(open_gguf(first).files) == 3
    for name, value in whole.items():
        np.testing.assert_array_equal(split[name], value)


def test_second_part_says_which_to_open(tmp_path: Path) -> None:
    """BB-08 (llama.cpp#6187)."""
    first = write_tiny_gguf(tmp_path / "tiny.gguf", num_parts=2)
    second = first.with_name("tiny-00002-of-00002.gguf")
    with pytest.raises(CheckpointError, match=r"part 2 .* open the first .*tiny-00001-of-00002"):
        open_gguf(second)


def test_missing_parts_are_named(tmp_path: Path) -> None:
    """BB-08 (llama.cpp#15164)."""
    first = write_tiny_gguf(tmp_path / "tiny.gguf", num_parts=3)
    first.with_name("tiny-00002-of-00003.gguf").unlink()
    with pytest.raises(CheckpointError, match=r"lacks 1 of the 3 .*tiny-00002-of-00003.gguf"):
        open_gguf(first)


@pytest.mark.parametrize("name", ["joined.gguf", "tiny-00001-of-00002.gguf"])
def test_parts_joined_with_cat_are_refused(tmp_path: Path, name: str) -> None:
    """BB-08 (llama.cpp#9613): never half a model."""
    first = write_tiny_gguf(tmp_path / "tiny.gguf", num_parts=2)
    content = first.read_bytes() + first.with_name("tiny-00002-of-00002.gguf").read_bytes()
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match="cat"):
        open_gguf(tmp_path / name)


def test_renamed_part_is_refused(tmp_path: Path) -> None:
    first = write_tiny_gguf(tmp_path / "tiny.gguf", num_parts=2)
    with pytest.raises(CheckpointError, match="part 1 of 2"):
        open_gguf(first.rename(tmp_path / "model.gguf"))


def test_lone_part_without_split_keys_loads(tmp_path: Path) -> None:
    """BB-08 (vllm-metal#720)."""
    path = write_tiny_gguf(tmp_path / "tiny-00001-of-00001.gguf")
    assert len(all_tensors(path)) == 21


def test_parts_of_different_models_are_refused(tmp_path: Path) -> None:
    first = write_tiny_gguf(tmp_path / "tiny.gguf", num_parts=2)
    second = first.with_name("tiny-00002-of-00002.gguf")
    split = {"split.no": 1, "split.count": 2, "split.tensors.count": 21}
    write_gguf(second, split, {"ghost": np.zeros(8, np.float32)})
    with pytest.raises(CheckpointError, match="split.tensors.count=21.* hold 12"):
        open_gguf(first)
    write_gguf(second, split, {"token_embd.weight": np.zeros(8, np.float32)})
    with pytest.raises(CheckpointError, match="token_embd.weight|split.tensors.count"):
        open_gguf(first)
    write_gguf(second, split | {"split.no": 0}, {})
    with pytest.raises(CheckpointError, match="split.no=0"):
        open_gguf(first)
