"""Models and options that cannot be used: the type of the error, the value, the rule, the way out.

All are found before anything is compiled. Details of each reader are in tests/checkpoint.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxinfer.errors import (
    CapacityError,
    CheckpointError,
    ConfigError,
    JaxInferError,
    UnsupportedError,
)
from jaxinfer.runner.compile import CompileLog, counted_compiles
from tests.end_to_end.conftest import OpenLLM
from tests.support.gguf_tokenizers import smollm2_metadata
from tests.support.tiny_models import write_tiny, write_tiny_gguf

EMBEDDING = "model.embed_tokens.weight"
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


def nothing_there(folder: Path) -> Path:
    return folder / "no-such-model"


def empty_folder(folder: Path) -> Path:
    return folder


def another_file(folder: Path) -> Path:
    path = folder / "notes.txt"
    path.write_text("not a model")
    return path


def truncated_safetensors(folder: Path) -> Path:
    """BB-03 (vmlx-swift#217): bytes past the end read as zeros."""
    path = write_tiny(folder) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4096])
    return folder


def garbled_safetensors(folder: Path) -> Path:
    path = write_tiny(folder) / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[8:40] = b"\xff" * 32
    path.write_bytes(content)
    return folder


def truncated_gguf(folder: Path) -> Path:
    """BB-03: less the last 30 %."""
    path = write_tiny_gguf(folder / "tiny.gguf")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 7 // 10])
    return path


def garbled_gguf(folder: Path) -> Path:
    path = write_tiny_gguf(folder / "tiny.gguf")
    content = bytearray(path.read_bytes())
    content[16:24] = b"\xff" * 8  # the number of metadata entries
    path.write_bytes(content)
    return path


def broken_config(folder: Path) -> Path:
    (write_tiny(folder) / "config.json").write_text('{"model_type": "llama",')
    return folder


def unknown_architecture(folder: Path) -> Path:
    return write_tiny(folder, model_type="llama17")


def unknown_gguf_architecture(folder: Path) -> Path:
    return write_tiny_gguf(folder / "m.gguf", metadata={"general.architecture": "rwkv7"})


def unknown_pre(folder: Path) -> Path:
    """The demo model's tokenizer under a name that nobody knows; guessing would be wrong."""
    metadata = {**smollm2_metadata(), "tokenizer.ggml.pre": "smollm9"}
    vocab = len(metadata["tokenizer.ggml.tokens"])
    return write_tiny_gguf(folder / "m.gguf", metadata=metadata, vocab_size=vocab)


def unknown_quantization(folder: Path) -> Path:
    return write_tiny(folder, quantization_config={"quant_method": "mystery", "bits": 4})


def missing_tensor(folder: Path) -> Path:
    """BB-01, BB-02 (vllm#34859)."""
    return write_tiny(folder, drop=[Q_PROJ])


def missing_shard(folder: Path) -> Path:
    write_tiny(folder, num_shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    return folder


def wrong_shape(folder: Path) -> Path:
    return write_tiny(folder, add={Q_PROJ: np.zeros((64, 63), np.float32)})


def left_over_tensor(folder: Path) -> Path:
    """BB-05 (mlc-llm#3494)."""
    return write_tiny(folder, add={"lm_head.bias": np.zeros(320, np.float32)})


def fewer_rows_than_tokens(folder: Path) -> Path:
    """BB-27: both numbers, and never a guess which rows belong to which tokens."""
    return write_tiny_gguf(folder / "m.gguf", metadata=smollm2_metadata())


def bad_tokenizer(folder: Path) -> Path:
    (write_tiny(folder) / "tokenizer.json").write_text("{}")
    return folder


BAD_MODELS: list[tuple[Callable[[Path], Path], type[JaxInferError], list[str]]] = [
    (nothing_there, CheckpointError, ["no-such-model", "was not found", "demo"]),
    (empty_folder, CheckpointError, ["config.json", ".gguf"]),
    (another_file, CheckpointError, ["notes.txt", "not a GGUF file"]),
    (truncated_safetensors, CheckpointError, ["model.safetensors", "fetch"]),
    (garbled_safetensors, CheckpointError, ["model.safetensors"]),
    (truncated_gguf, CheckpointError, ["tiny.gguf", "fetch"]),
    (garbled_gguf, CheckpointError, ["tiny.gguf"]),
    (broken_config, CheckpointError, ["config.json"]),
    (unknown_architecture, UnsupportedError, ["llama17", "known: llama"]),
    (unknown_gguf_architecture, UnsupportedError, ["rwkv7", "known: llama"]),
    (unknown_pre, UnsupportedError, ["smollm9"]),
    (unknown_quantization, UnsupportedError, ["mystery", "known: gptq", "an unquantized"]),
    (missing_tensor, CheckpointError, [Q_PROJ, "1 of the", "fetch"]),
    (missing_shard, CheckpointError, ["model-00002-of-00002.safetensors"]),
    (wrong_shape, CheckpointError, [Q_PROJ, "[64, 63]", "[64, 64]"]),
    (left_over_tensor, CheckpointError, ["lm_head.bias"]),
    (fewer_rows_than_tokens, CheckpointError, ["320", "49152"]),
    (bad_tokenizer, CheckpointError, ["tokenizer.json"]),
]


def check_refused(start: Callable[[], Any], error: type[JaxInferError], words: list[str]) -> None:
    with counted_compiles(CompileLog()) as log, pytest.raises(error) as raised:
        start()
    assert type(raised.value) is error
    for word in words:
        assert word in str(raised.value)
    assert log.num_compiles == 0


@pytest.mark.parametrize(
    ("make", "error", "words"), BAD_MODELS, ids=[make.__name__ for make, *_ in BAD_MODELS]
)
def test_bad_models(
    open_llm: OpenLLM,
    tmp_path: Path,
    make: Callable[[Path], Path],
    error: type[JaxInferError],
    words: list[str],
) -> None:
    model = make(tmp_path)
    check_refused(lambda: open_llm(model), error, words)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"max_num_seq": 4}, ConfigError, ["'max_num_seq'", "did you mean 'max_num_seqs'"]),
        ({"tensor_parallel_size": 2}, ConfigError, ["'tensor_parallel_size'", "known options"]),
        ({"speculative_config": {"model": "m"}}, CheckpointError, ["model='m'", "not found"]),
        ({"quantization": "awq"}, UnsupportedError, ["quantization='awq'"]),
        ({"dtype": "float16"}, ConfigError, ["dtype='float16'", "'float32'"]),
        ({"max_num_seqs": 0}, ConfigError, ["max_num_seqs=0", "at least 1"]),
        ({"block_size": 24}, ConfigError, ["block_size=24", "power of two"]),
        ({"max_model_len": 257}, ConfigError, ["max_model_len=257", "256"]),
        ({"max_num_batched_tokens": 8}, ConfigError, ["max_num_batched_tokens=8", "16"]),
        ({"gpu_memory_utilization": 1.5}, ConfigError, ["gpu_memory_utilization=1.5", "(0, 1]"]),
        ({"gpu_memory_utilization": 1e-9}, CapacityError, ["gpu_memory_utilization", "free"]),
        ({"kernels": "cuda"}, ConfigError, ["kernels='cuda'", "'reference'"]),
        ({"seed": -1}, ConfigError, ["seed=-1", "2**63"]),
        ({"tokenizer": "no-such-folder"}, CheckpointError, ["no-such-folder"]),
    ],
    ids=str,
)
def test_bad_options(
    open_llm: OpenLLM,
    tiny_folder: Path,
    options: dict[str, Any],
    error: type[JaxInferError],
    words: list[str],
) -> None:
    check_refused(lambda: open_llm(tiny_folder, **options), error, words)


def test_an_unknown_option_is_found_before_the_model_is_looked_for(open_llm: OpenLLM) -> None:
    with pytest.raises(ConfigError, match="did you mean 'dtype'"):
        open_llm(Path("no-such-model"), dtyp="float32")


def test_wrong_values_are_value_errors(open_llm: OpenLLM, tiny_folder: Path) -> None:
    """So that callers who do not know jaxinfer's types catch them."""
    with pytest.raises(ValueError, match="block_size"):
        open_llm(tiny_folder, block_size=24)


def test_the_config_names_the_file(open_llm: OpenLLM, tmp_path: Path) -> None:
    folder = write_tiny(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": "wide"}))
    with pytest.raises(CheckpointError, match=r"config\.json.*hidden_size.*wide"):
        open_llm(folder)
