"""Opening a checkpoint: what the record says, and that damage shows before any tensor is read."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxinfer.checkpoint.checkpoint import Checkpoint, open_checkpoint
from jaxinfer.errors import CheckpointError, UnsupportedError
from tests.support.demo import demo_path
from tests.support.tiny_models import TINY_CONFIG, write_tiny, write_tiny_gguf

DATA = Path(__file__).parents[1] / "data"


def opened(model: str | Path) -> Checkpoint:
    return open_checkpoint(model, show_progress=False)


def test_a_folder(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "m", num_shards=2)
    (folder / "generation_config.json").write_text('{"eos_token_id": 5, "top_k": 3}')
    checkpoint = opened(str(folder))
    assert (checkpoint.kind, checkpoint.path, checkpoint.folder) == ("hf", folder, folder)
    assert checkpoint.gguf_metadata is None
    assert checkpoint.generation_config == {"eos_token_id": 5, "top_k": 3}
    assert checkpoint.config.eos_token_ids == (2, 5)
    assert checkpoint.architecture.name == "llama"
    assert checkpoint.quantization == "none (f32)"
    assert checkpoint.num_parameters == sum(
        np.prod(info.shape) for info in checkpoint.tensors.infos.values()
    )
    assert checkpoint.file_bytes == sum(
        path.stat().st_size for path in folder.glob("*.safetensors")
    )


def test_a_gguf_file() -> None:
    path = DATA / "quant/gguf_llama_q4_1/model.gguf"
    checkpoint = opened(path)
    assert (checkpoint.kind, checkpoint.path, checkpoint.folder) == ("gguf", path, None)
    assert checkpoint.gguf_metadata is not None
    assert checkpoint.gguf_metadata["general.architecture"] == "llama"
    assert checkpoint.generation_config == {}
    assert checkpoint.quantization == "Q4_1 ×14, F32 ×7"
    assert checkpoint.file_bytes == path.stat().st_size


def test_a_tied_table_counts_once(tmp_path: Path) -> None:
    tied = opened(write_tiny(tmp_path / "a", tie_word_embeddings=True))
    untied = opened(write_tiny(tmp_path / "b"))
    assert untied.num_parameters - tied.num_parameters == 320 * 64


@pytest.mark.weights
def test_the_demo_models() -> None:
    small = opened(demo_path("smollm2-135m"))
    assert small.quantization == "Q4_1 ×210, Q8_0 ×1, F32 ×61"
    assert small.num_parameters == 134515008
    gemma = opened(demo_path("gemma3-270m"))
    assert gemma.quantization == "Q5_0 ×81, Q4_K ×27, Q8_0 ×10, Q6_K ×9, F32 ×109"
    assert gemma.config.windows[:6] == (512,) * 5 + (0,)


def test_missing_shards_come_before_the_quantization(tmp_path: Path) -> None:
    """BB-02 (nano-vllm#264): the completeness check skipped quantized models."""
    quantized = {"quantization_config": {"quant_method": "mystery", "bits": 4}}
    folder = write_tiny(tmp_path, num_shards=2, **quantized)
    with pytest.raises(UnsupportedError, match="mystery"):
        opened(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="model-00002-of-00002"):
        opened(folder)


def broken_folder(folder: Path, config: dict[str, Any] | None) -> Path:
    write_tiny(folder)
    (folder / "model.safetensors").write_bytes(b"\xff" * 100)
    (folder / "config.json").write_text("{" if config is None else json.dumps(config))
    return folder


def cut(path: Path, share: float) -> Path:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    return path


BAD = {
    "missing path": (lambda p: p / "nothing", CheckpointError, "nothing"),
    "empty folder": (lambda p: p, CheckpointError, "neither config.json"),
    "config cut": (lambda p: broken_folder(p, None), CheckpointError, "config.json"),
    "architecture": (
        lambda p: broken_folder(p, {"model_type": "mamba"}),
        UnsupportedError,
        "mamba",
    ),
    "weights damaged": (
        lambda p: broken_folder(p, TINY_CONFIG),
        CheckpointError,
        "model.safetensors",
    ),
    "gguf cut": (lambda p: cut(write_tiny_gguf(p / "m.gguf"), 0.7), CheckpointError, "blk.1."),
    "gguf architecture": (
        lambda p: write_tiny_gguf(p / "m.gguf", metadata={"general.architecture": "rwkv"}),
        UnsupportedError,
        "rwkv",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_at_once(tmp_path: Path, case: str) -> None:
    make, error, told = BAD[case]
    model = make(tmp_path)
    start = time.perf_counter()
    with pytest.raises(error, match=told):
        opened(model)
    assert time.perf_counter() - start < 0.5
