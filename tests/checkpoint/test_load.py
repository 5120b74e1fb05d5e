"""Parameters from tensors: values, dtypes, order of rows, and how much memory it takes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxinfer.checkpoint.checkpoint import open_checkpoint
from jaxinfer.checkpoint.load import abstract_params, load_params
from jaxinfer.errors import CheckpointError, ConfigError
from jaxinfer.models.spec import Leaf
from tests.support.demo import demo_path
from tests.support.tiny_models import (
    TINY_CONFIG,
    TINY_GEMMA3_CONFIG,
    random_weights,
    write_hf_folder,
    write_tiny,
    write_tiny_gguf,
)

DATA = Path(__file__).parents[1] / "data"
BIASED = {"attention_bias": True, "mlp_bias": True}


def load(model: Path, weight_dtype: Any = "float32", **options: Any) -> Any:
    checkpoint = open_checkpoint(model, show_progress=False)
    return load_params(checkpoint, weight_dtype=weight_dtype, show_progress=False, **options)


def assert_trees_equal(left: Any, right: Any) -> None:
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for one, other in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_values_are_the_file_s(tmp_path: Path) -> None:
    """BB-05 (vllm#3767): all seven biases arrive, o and down too."""
    weights = random_weights(TINY_CONFIG | BIASED)
    params = load(write_hf_folder(tmp_path, TINY_CONFIG | BIASED, weights))
    layer, prefix = params["layers"][1], "model.layers.1."
    parts = {
        "q": "self_attn.q_proj",
        "k": "self_attn.k_proj",
        "v": "self_attn.v_proj",
        "o": "self_attn.o_proj",
        "gate": "mlp.gate_proj",
        "up": "mlp.up_proj",
        "down": "mlp.down_proj",
    }
    for name, theirs in parts.items():
        np.testing.assert_array_equal(layer[name].value, weights[f"{prefix}{theirs}.weight"])
        np.testing.assert_array_equal(layer[name].bias, weights[f"{prefix}{theirs}.bias"])
    norm = weights[f"{prefix}post_attention_layernorm.weight"]
    np.testing.assert_array_equal(layer["mlp_norm"], norm)
    np.testing.assert_array_equal(params["head"].value, weights["lm_head.weight"])
    np.testing.assert_array_equal(params["embedding"], weights["model.embed_tokens.weight"])


@pytest.mark.parametrize("options", [{}, BIASED, {"num_key_value_heads": 4}])
def test_gguf_rows_are_put_back_into_halves(tmp_path: Path, options: dict) -> None:
    """Rows of q and k, and their biases, are interleaved in a llama GGUF file."""
    folder = write_tiny(tmp_path / "hf", **options)
    assert_trees_equal(load(write_tiny_gguf(tmp_path / "m.gguf", **options)), load(folder))


def test_gemma3_norms_are_the_same_from_both_forms(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "hf", base=TINY_GEMMA3_CONFIG)
    path = write_tiny_gguf(tmp_path / "m.gguf", base=TINY_GEMMA3_CONFIG)
    params = load(folder)
    assert_trees_equal(load(path), params)
    stored = random_weights(TINY_GEMMA3_CONFIG)["model.norm.weight"]
    np.testing.assert_array_equal(params["final_norm"], stored + np.float32(1))


@pytest.mark.parametrize("name", ["llama_f32", "llama_q8_0", "llama_tied_q8_0"])
def test_gguf_of_others_is_near_the_weights_it_was_made_of(name: str) -> None:
    source = "llama_tied" if "tied" in name else "llama"
    found = load(DATA / f"quant/gguf_{name}/model.gguf")
    expected = load(DATA / f"float/{source}")
    error = 0 if name.endswith("f32") else 0.01
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        scale = float(jnp.abs(other).max())
        np.testing.assert_allclose(one, other, rtol=0, atol=error * scale)


@pytest.mark.parametrize("block_bytes", [1, 4 * 64 * 20, 2**30])
def test_blocks_of_any_size_give_the_same(
    tmp_path: Path, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", **BIASED)
    expected = load(path)
    monkeypatch.setattr("jaxinfer.checkpoint.load._BLOCK_BYTES", block_bytes)
    assert_trees_equal(load(path), expected)


@pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16", "float64", "float8_e4m3fn"])
@pytest.mark.parametrize("wanted", ["bfloat16", "float32"])
def test_dtypes(tmp_path: Path, stored: str, wanted: str) -> None:
    """Rounding is to nearest even, once, from what is stored."""
    kind = jnp.dtype(stored)
    weights = {name: value.astype(kind) for name, value in random_weights(TINY_CONFIG).items()}
    params = load(write_hf_folder(tmp_path, TINY_CONFIG, weights), wanted)
    embedding = weights["model.embed_tokens.weight"].astype(np.float32)
    assert params["embedding"].dtype == wanted
    np.testing.assert_array_equal(params["embedding"], embedding.astype(jnp.dtype(wanted)))
    assert params["final_norm"].dtype == jnp.float32
    expected = weights["model.norm.weight"].astype(np.float32)
    np.testing.assert_array_equal(params["final_norm"], expected)


def test_ties_round_to_even(tmp_path: Path) -> None:
    weights = random_weights(TINY_CONFIG)
    row = weights["model.embed_tokens.weight"][0]
    row[:3] = 1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-20
    params = load(write_hf_folder(tmp_path, TINY_CONFIG, weights), "bfloat16")
    found = np.asarray(params["embedding"][0, :3], np.float32)
    np.testing.assert_array_equal(found, [1, 1 + 2.0**-6, 1 + 2.0**-7])


@pytest.mark.parametrize("weight_dtype", ["bfloat16", "float32", jnp.bfloat16, np.dtype("float32")])
@pytest.mark.parametrize("name", ["float/llama_bias", "float/gemma3_text"])
def test_abstract_params_have_the_same_tree(name: str, weight_dtype: Any) -> None:
    checkpoint = open_checkpoint(DATA / name, show_progress=False)
    shapes = abstract_params(checkpoint.config, checkpoint.architecture, weight_dtype)
    params = load(DATA / name, weight_dtype)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), params) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), shapes
    )


@pytest.mark.parametrize("weight_dtype", ["float16", "int8", "bf16", None, 5])
def test_other_weight_dtypes_are_refused(weight_dtype: Any) -> None:
    with pytest.raises(ConfigError, match="weight_dtype"):
        load(DATA / "float/llama", weight_dtype)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["model.layers.1.mlp.up_proj.weight", "model.norm.weight"])
def test_values_that_are_not_finite_are_refused(tmp_path: Path, name: str, value: float) -> None:
    weights = random_weights(TINY_CONFIG)
    weights[name].flat[-1] = value
    folder = write_hf_folder(tmp_path, TINY_CONFIG, weights)
    with pytest.raises(CheckpointError, match=f"'{name}' in .*model.safetensors"):
        load(folder)


def test_bfloat16_nan_is_refused(tmp_path: Path) -> None:
    weights = {
        name: value.astype(ml_dtypes.bfloat16)
        for name, value in random_weights(TINY_CONFIG).items()
    }
    weights["lm_head.weight"][3, 3] = np.nan
    with pytest.raises(CheckpointError, match="lm_head.weight"):
        load(write_hf_folder(tmp_path, TINY_CONFIG, weights), "bfloat16")


def test_place_gets_aligned_arrays_and_their_leaves(tmp_path: Path) -> None:
    seen = []

    def place(value: np.ndarray, leaf: Leaf) -> jax.Array:
        assert value.ctypes.data % 64 == 0 and value.shape == leaf.shape
        seen.append(leaf.hf)
        return jnp.zeros((), jnp.float32)

    params = load(write_tiny(tmp_path), place=place)
    assert len(seen) == len(set(seen)) == len(jax.tree.leaves(params)) == 21
    assert params["embedding"].shape == ()


def test_nothing_is_placed_when_a_tensor_is_missing(tmp_path: Path) -> None:
    def place(value: np.ndarray, leaf: Leaf) -> jax.Array:
        raise AssertionError("read before the check")

    with pytest.raises(CheckpointError, match="mlp.down_proj"):
        load(write_tiny(tmp_path, drop=["model.layers.1.mlp.down_proj.weight"]), place=place)


def test_the_bar_ends_at_the_bytes_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    checkpoint = open_checkpoint(write_tiny_gguf(tmp_path / "m.gguf"), show_progress=False)
    load_params(checkpoint, weight_dtype="float32")
    assert "100%" in capsys.readouterr().err


MEASURE = """
import json, sys, threading, time, jax
from jaxinfer.checkpoint.checkpoint import open_checkpoint
from jaxinfer.checkpoint.load import load_params

def anonymous_bytes():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))

def watch():
    while not done.is_set():
        peak[0] = max(peak[0], anonymous_bytes())
        time.sleep(0.002)

jax.devices()
before, done = anonymous_bytes(), threading.Event()
peak = [before]
watcher = threading.Thread(target=watch)
watcher.start()
checkpoint = open_checkpoint(sys.argv[1], show_progress=False)
options = {"keep_packed": sys.argv[3] == "packed", "show_progress": False}
params = load_params(checkpoint, weight_dtype=sys.argv[2], **options)
done.set()
watcher.join()
num_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
print(json.dumps([num_bytes, peak[0] - before, anonymous_bytes() - before]))
"""
needs_proc = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="anonymous memory is read from /proc"
)


def growth(model: Path, weight_dtype: str, form: str = "decoded") -> tuple[int, int]:
    """Bytes of the weights as loaded, and by how much anonymous memory grew at most."""
    command = [sys.executable, "-c", MEASURE, str(model), weight_dtype, form]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    num_bytes, peak, after = json.loads(done.stdout)
    assert after >= num_bytes * 0.95, "the measure does not see the weights"
    return num_bytes, peak


@needs_proc
@pytest.mark.parametrize("form", ["hf", "gguf"])
def test_memory_grows_by_the_weights_and_little_more(tmp_path: Path, form: str) -> None:
    """One table of 128 MB dominates: a second copy of it would show."""
    shape = {"vocab_size": 2**17, "hidden_size": 256, "head_dim": 64, "num_hidden_layers": 1}
    options = shape | {"std": 0.01, "tie_word_embeddings": True}
    if form == "hf":
        model = write_tiny(tmp_path / "m", **options)
    else:
        model = write_tiny_gguf(tmp_path / "m.gguf", drop=["output.weight"], **options)
    num_bytes, peak = growth(model, "float32")
    assert num_bytes > 2**27
    assert peak < num_bytes + 70 * 2**20


@needs_proc
def test_memory_of_packed_weights(tmp_path: Path) -> None:
    """No matrix is ever there as floats: these would be eight times what is kept."""
    shape = {"hidden_size": 512, "intermediate_size": 2**16, "num_hidden_layers": 1, "std": 0.01}
    model = write_tiny_gguf(tmp_path / "m.gguf", types={"ffn": "Q4_0"}, **shape)
    num_bytes, peak = growth(model, "float32", "packed")
    assert 50e6 < num_bytes < 70e6
    assert peak < num_bytes + 70 * 2**20


@needs_proc
@pytest.mark.weights
@pytest.mark.parametrize(
    ("name", "weight_dtype"), [("smollm2-135m", "bfloat16"), ("gemma3-270m", "float32")]
)
def test_memory_of_the_demo_models(name: str, weight_dtype: str) -> None:
    """The bound: weights as loaded + 30 % + 200 MB (a 262,144 × 640 table is the hard case)."""
    num_bytes, peak = growth(demo_path(name), weight_dtype)
    assert peak < num_bytes * 1.3 + 200e6
