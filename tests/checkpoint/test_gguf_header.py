"""The GGUF header: versions, value types, and damaged or hostile files."""

import struct
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from jaxinfer.checkpoint.gguf_file import open_gguf
from jaxinfer.checkpoint.gguf_header import BLOCK_TYPES
from jaxinfer.errors import CheckpointError, UnsupportedError
from tests.support.gguf_writer import write_gguf
from tests.support.tiny_models import write_tiny_gguf

ONE = {"x": np.arange(8, dtype=np.float32)}
HEAD = 24  # magic, version, two counts


def test_sizes_of_blocks_are_ggml_s() -> None:
    for number, block in BLOCK_TYPES.items():
        kind = GGMLQuantizationType(number)
        assert (block.name, block.num_elements, block.num_bytes) == (
            kind.name,
            *GGML_QUANT_SIZES[kind],
        )


@pytest.mark.parametrize("version", [2, 3])
def test_every_value_type_comes_back(tmp_path: Path, version: int) -> None:
    metadata = {
        "u8": np.uint8(200),
        "i8": np.int8(-3),
        "u16": np.uint16(60000),
        "i16": np.int16(-300),
        "u32": np.uint32(2**32 - 1),
        "i32": np.int32(-(2**31)),
        "f32": np.float32(0.5),
        "flag": True,
        "text": "añ\n",
        "u64": np.uint64(2**64 - 1),
        "i64": np.int64(-(2**63)),
        "f64": np.float64(1e300),
        "texts": ["", "a", "▁b"],
        "floats": [0.5, -1.0],
        "ints": [1, -2],
        "flags": np.array([True, False]),
        "none": np.zeros(0, np.int32),
    }
    path = write_gguf(tmp_path / "m.gguf", metadata, ONE, version=version)
    expected = {
        key: value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        for key, value in metadata.items()
    }
    found = open_gguf(path).metadata
    assert found == expected
    assert {key: type(value) for key, value in found.items()} == {
        key: type(value) for key, value in expected.items()
    }


def test_alignment_is_honoured(tmp_path: Path) -> None:
    tensors = {"x": np.arange(3, dtype=np.float32), "y": np.arange(5, dtype=np.float32)}
    path = write_gguf(tmp_path / "m.gguf", {"general.alignment": 256}, tensors)
    source = open_gguf(path)
    for name, value in tensors.items():
        assert source.infos[name].offset % 256 == 0
        np.testing.assert_array_equal(source.read_rows(name, 0, len(value), np.float32), value)


@pytest.mark.parametrize("alignment", [0, 7, 2**31, -1.0])
def test_alignment_that_cannot_be(tmp_path: Path, alignment: float) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"a": 1}, ONE)
    write_value = np.uint32(alignment) if alignment >= 0 else alignment
    content = write_gguf(tmp_path / "n.gguf", {"general.alignment": 32}, ONE).read_bytes()
    kind, value = (4, struct.pack("<I", write_value)) if alignment >= 0 else (6, b"\0\0\x80\xbf")
    place = content.index(b"general.alignment") + len("general.alignment")
    path.write_bytes(content[:place] + struct.pack("<I", kind) + value + content[place + 8 :])
    with pytest.raises(CheckpointError, match="general.alignment"):
        open_gguf(path)


def test_big_endian_is_called_so(tmp_path: Path) -> None:
    """BB-03 (e) (llama.cpp#13943): a big-endian file gave a puzzling message."""
    path = write_gguf(tmp_path / "m.gguf", {}, ONE, order=">")
    assert path.read_bytes()[4:8] == b"\0\0\0\3"
    with pytest.raises(CheckpointError, match="big-endian"):
        open_gguf(path)


@pytest.mark.parametrize("version", [0, 1, 4])
def test_other_versions_are_refused_by_number(tmp_path: Path, version: int) -> None:
    path = write_gguf(tmp_path / "m.gguf", {}, ONE, version=version)
    with pytest.raises(UnsupportedError, match=f"version {version}"):
        open_gguf(path)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGML" + bytes(60), b"PK\3\4" + bytes(60)])
def test_files_that_are_not_gguf(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="m.gguf"):
        open_gguf(path)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    """BB-03 (b) (aprender#2011, imp#1312): interrupted downloads."""
    path = write_tiny_gguf(tmp_path / "m.gguf", num_hidden_layers=1, vocab_size=32)
    content = path.read_bytes()
    for share in np.linspace(0, 0.999, 60):
        path.write_bytes(content[: int(len(content) * share)])
        with pytest.raises(CheckpointError, match="m.gguf"):
            open_gguf(path)
    path.write_bytes(content[: int(len(content) * 0.7)])
    with pytest.raises(CheckpointError, match=r"tensor 'blk.0.ffn_\w+.weight'"):
        open_gguf(path)


@pytest.mark.parametrize("offset", [2**63, 2**64 - 32, 2**20])
def test_offset_past_the_end(tmp_path: Path, offset: int) -> None:
    """BB-03 (c): sums of offset and size must not overflow."""
    path = write_gguf(tmp_path / "m.gguf", {}, ONE, offsets={"x": offset})
    with pytest.raises(CheckpointError, match="tensor 'x'"):
        open_gguf(path)


def test_offsets_that_overlap_or_are_not_aligned(tmp_path: Path) -> None:
    tensors = ONE | {"y": np.arange(16, dtype=np.float32)}
    for place in (0, 32, 4):
        path = write_gguf(tmp_path / "m.gguf", {}, tensors, offsets={"x": 32, "y": place})
        with pytest.raises(CheckpointError, match="tensor '[xy]'"):
            open_gguf(path)


def patched(place: int, content: bytes) -> Callable[[bytes], bytes]:
    return lambda whole: whole[:place] + content + whole[place + len(content) :]


HUGE = struct.pack("<Q", 2**60)
ENTRY = HEAD + 8 + 1  # after the key "k"
LIES = {
    "tensor count": patched(8, HUGE),
    "key count": patched(16, HUGE),
    "key length": patched(HEAD, HUGE),
    "key length zero": patched(HEAD, bytes(8)),
    "key not UTF-8": patched(HEAD + 8, b"\xff"),
    "value type": patched(ENTRY, struct.pack("<I", 13)),
    "array count": patched(ENTRY + 8, HUGE),
    "item type": patched(ENTRY + 4, struct.pack("<I", 99)),
    "string length": patched(ENTRY + 16, HUGE),
    "string not UTF-8": patched(ENTRY + 24, b"\xff"),
}


@pytest.mark.parametrize("case", LIES)
def test_counts_that_lie(tmp_path: Path, case: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"k": ["text", "more"]}, ONE)
    path.write_bytes(LIES[case](path.read_bytes()))
    start = time.perf_counter()
    with pytest.raises(CheckpointError, match="m.gguf"):
        open_gguf(path)
    assert time.perf_counter() - start < 0.5


def test_deep_arrays_end(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"k": ["text"]}, ONE)
    content = path.read_bytes()
    nest = struct.pack("<IQ", 9, 1) * 1000
    path.write_bytes(content[: ENTRY + 4] + nest + content[ENTRY + 4 :])
    with pytest.raises(CheckpointError, match="depth"):
        open_gguf(path)


def test_shapes_that_cannot_be(tmp_path: Path) -> None:
    raw = {"x": np.zeros(18, np.uint8)}
    for shape in ((16,), (2**32, 2**32), (0, 32)):
        path = write_gguf(tmp_path / "m.gguf", {}, raw, types={"x": (2, shape)})
        with pytest.raises(CheckpointError, match="tensor 'x'"):
            open_gguf(path)
    path = write_gguf(tmp_path / "m.gguf", {}, raw, types={"x": (2, (1, 1, 1, 1, 32))})
    with pytest.raises(CheckpointError, match="5 axes"):
        open_gguf(path)


@pytest.mark.parametrize(("number", "title"), [(9, "Q8_1"), (26, "I32"), (99, "unknown")])
def test_types_that_are_not_read(tmp_path: Path, number: int, title: str) -> None:
    path = write_gguf(
        tmp_path / "m.gguf", {}, {"x": np.zeros(64, np.uint8)}, types={"x": (number, (32,))}
    )
    with pytest.raises(UnsupportedError, match=rf"'x' has type {title} \({number}\)"):
        open_gguf(path)


def test_random_damage_is_an_error_or_nothing(tmp_path: Path) -> None:
    """Whatever a few flipped header bytes do, it is one of our errors, soon."""
    path = write_tiny_gguf(tmp_path / "m.gguf", num_hidden_layers=1, vocab_size=32)
    content, random = path.read_bytes(), np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(content)
        for place in random.integers(0, 1500, 3):
            damaged[place] = random.integers(256)
        path.write_bytes(damaged)
        try:
            open_gguf(path)
        except (CheckpointError, UnsupportedError):
            pass


def test_a_large_vocabulary_is_read_in_time(tmp_path: Path) -> None:
    """262,144 tokens with scores and types, as the Gemma file has; 0.3 s on a quiet machine."""
    count = 262_144
    metadata = {
        "tokens": [f"token{i}" for i in range(count)],
        "scores": np.zeros(count, np.float32),
        "types": np.ones(count, np.int32),
    }
    path = write_gguf(tmp_path / "m.gguf", metadata, ONE)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        assert len(open_gguf(path).metadata["tokens"]) == count
        times.append(time.perf_counter() - start)
    assert min(times) < 1.0
