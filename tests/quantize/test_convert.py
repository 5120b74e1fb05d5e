"""A native checkpoint holds what runs: the same arrays as its source, of every kind and format."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from jaxinfer.checkpoint.checkpoint import find_sources, open_checkpoint
from jaxinfer.checkpoint.load import load_params, packed_forms
from jaxinfer.errors import CapacityError, ConfigError, UnsupportedError
from jaxinfer.quantize import convert_model, quantize_model
from jaxinfer.text.tokenizer import tokenizer_from_folder
from tests.repository.tree import ROOT
from tests.support.byte_tokenizer import save_byte_tokenizer
from tests.support.family_fixtures import read_fixture
from tests.support.tiny_models import TINY_GEMMA3_CONFIG, write_tiny, write_tiny_gguf

QUANT = ROOT / "tests" / "data" / "quant"
STORED = [
    "autoawq_pack_w4_g32",
    "ct_fp8_block",
    "ct_fp8_kv",
    "ct_nvfp4a16",
    "ct_w4a16_g128_asym",
    "ct_w8a8_dynamic",
    "gguf_kq_q4_k",
    "gguf_llama_q4_1",
    "gguf_phi3_q8_0",
    "gptq_w4_g32_descact",
    "hf_fp8_block_llama_64x32",
]
FAMILIES = ["gemma3", "gpt_oss_mxfp4", "mixtral_window", "phi3", "qwen3_moe_listed", "smollm3"]


def assert_same(model: Path, native: Path, dtype: str = "float32", **options: Any) -> None:
    """Every array that would run is the same, bit for bit, and so is the config."""
    first, second = (open_checkpoint(path, show_progress=False) for path in (model, native))
    assert second.kind == "native" and first.config == second.config
    scales = [one.quant_format.kv_scales if one.quant_format else {} for one in (first, second)]
    assert scales[0] == scales[1]
    assert packed_forms(find_sources(first)) == packed_forms(find_sources(second))
    trees = [
        load_params(one, weight_dtype=dtype, show_progress=False, **options)
        for one in (first, second)
    ]
    assert jax.tree.structure(trees[0]) == jax.tree.structure(trees[1])
    for one, other in zip(*map(jax.tree.leaves, trees), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.parametrize("name", STORED)
def test_quantized_checkpoints(name: str, tmp_path: Path) -> None:
    model = QUANT / name / "model.gguf" if name.startswith("gguf") else QUANT / name
    made = convert_model(model, tmp_path / "native", show_progress=False)
    assert_same(model, made.path)
    assert_same(model, made.path, keep_packed=True)
    said = json.loads((made.path / "config.json").read_text())
    assert "quantization_config" not in said and not list(made.path.glob("*.safetensors"))


@pytest.mark.parametrize("name", FAMILIES)
def test_families(name: str, tmp_path: Path) -> None:
    """Fused matrices, stacks of experts, norms stored less one."""
    model = read_fixture(name).write(tmp_path / "model")
    made = convert_model(model, tmp_path / "native", show_progress=False)
    assert_same(model, made.path, "bfloat16")
    assert_same(model, made.path, keep_packed=True)


def test_a_float_model_keeps_its_bytes_and_texts(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    wide = random.standard_normal((320, 64), np.float32).astype(ml_dtypes.bfloat16)
    model = write_tiny(tmp_path / "tiny", add={"model.embed_tokens.weight": wide})
    save_byte_tokenizer(model)
    made = convert_model(model, tmp_path / "native", show_progress=False)
    assert_same(model, made.path)
    opened = open_checkpoint(made.path, show_progress=False)
    assert opened.quant_format is None and opened.quantization == "none (f32)"
    assert made.bytes == made.source_bytes - _header_bytes(model)
    found, its = tokenizer_from_folder(made.path), tokenizer_from_folder(model)
    assert found is not None and its is not None and found.encode("sea") == its.encode("sea")


def _header_bytes(model: Path) -> int:
    with (model / "model.safetensors").open("rb") as file:
        return 8 + int.from_bytes(file.read(8), "little")


def test_places_are_relative_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_tiny(tmp_path / "tiny")
    monkeypatch.chdir(tmp_path)
    convert_model("tiny", "native", show_progress=False)
    assert_same(model, Path("native"))


def test_a_float_native_model_can_be_rounded(tmp_path: Path) -> None:
    """At load, and by a maker, to the bytes that its source gives."""
    model = write_tiny_gguf(tmp_path / "m.gguf", base=TINY_GEMMA3_CONFIG)
    native = convert_model(model, tmp_path / "native", show_progress=False).path
    options: dict[str, Any] = {"method": "rtn", "dtype": "float32", "show_progress": False}
    one, other = (
        quantize_model(path, tmp_path / name, **options).path
        for path, name in ((model, "one"), (native, "other"))
    )
    for file in one.glob("*.safetensors"):
        assert file.read_bytes() == (other / file.name).read_bytes()
    with pytest.raises(ConfigError, match="quantized already"):
        quantize_model(
            convert_model(one, tmp_path / "again", show_progress=False).path, "x", **options
        )


def test_what_is_written_loads_no_orbax_before_it_is_needed() -> None:
    code = "import jaxinfer.checkpoint.checkpoint, jaxinfer.quantize.convert, sys\n"
    code += "print([name for name in sys.modules if name.startswith(('orbax', 'tensorstore'))])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_models_that_no_config_describes(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="'qwen3_moe'"):
        convert_model(QUANT / "gguf_qwen3_moe_q4_0" / "model.gguf", tmp_path / "native")
    assert not list(tmp_path.iterdir())


def test_places_that_are_taken(tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "tiny")
    made = convert_model(model, tmp_path / "native", show_progress=False)
    with pytest.raises(ConfigError, match="overwrite"):
        convert_model(model, made.path, show_progress=False)
    with pytest.raises(ConfigError, match="holds the model itself"):
        convert_model(made.path, made.path, overwrite=True, show_progress=False)
    convert_model(model, made.path, overwrite=True, show_progress=False)


FULL_DISK = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
from jaxinfer.errors import CapacityError
from jaxinfer.quantize import convert_model
try:
    convert_model(sys.argv[1], sys.argv[2], show_progress=False)
except CapacityError as error:
    print("full:", error)
"""


def test_a_full_disk(tmp_path: Path) -> None:
    """A limit on the size of files stands for it: writing fails in the same way."""
    model, out = write_tiny(tmp_path / "tiny"), tmp_path / "native"
    command = [sys.executable, "-c", FULL_DISK, str(model), str(out), str(60_000)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("full:") and "free space" in done.stdout, done.stdout
    assert not out.exists()
    convert_model(model, out, show_progress=False)
    assert_same(model, out)


def test_a_run_that_ended_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jaxinfer.checkpoint import native_writer

    model, write, written = write_tiny(tmp_path / "tiny"), native_writer.write_arrays, []

    def fails_once(path: Path, arrays: Any) -> None:
        written.append(path.name)
        if written.count("layers.00001") == 1 and path.name == "layers.00001":
            raise CapacityError("the disk is full")
        write(path, arrays)

    monkeypatch.setattr(native_writer, "write_arrays", fails_once)
    with pytest.raises(CapacityError):
        convert_model(model, tmp_path / "native", show_progress=False)
    half = tmp_path / "native.partial" / "params" / "layers.00001.orbax-checkpoint-tmp"
    half.mkdir()
    made = convert_model(model, tmp_path / "native", show_progress=False)
    assert len(written) == 1 + len(set(written)), "finished parts are not made again"
    assert "layers.00001.orbax-checkpoint-tmp" not in [
        x.name for x in (made.path / "params").iterdir()
    ]
    assert_same(model, made.path)
