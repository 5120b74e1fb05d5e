"""How parameters are kept: by what was asked, where it runs and what the checkpoint holds."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.checkpoint.checkpoint import open_checkpoint
from jaxinfer.checkpoint.load import abstract_params, load_params
from jaxinfer.checkpoint.storage import FloatRoom, Storage, decide_storage
from jaxinfer.config.geometry import PackedShare, weights_bytes
from jaxinfer.config.quantization import quantization_from
from jaxinfer.errors import ConfigError
from jaxinfer.layers.weights import QuantWeight, RoundedInputWeight
from pallas_kernels.dispatch import HOPPER, Platform
from tests.support.tiny_models import write_tiny, write_tiny_gguf

DEEP: dict[str, Any] = {"num_hidden_layers": 4}


def storage(model: Path, platform: str = "cpu", **asked: Any) -> tuple[Any, Storage]:
    checkpoint = open_checkpoint(model, show_progress=False)
    quantization = quantization_from(asked.get("quantization"))
    return checkpoint, decide_storage(
        checkpoint,
        weights=asked.get("weights", "auto"),
        quantization=quantization,
        platform=platform,
    )


def params_of(checkpoint: Any, kept: Storage) -> Any:
    return load_params(
        checkpoint,
        weight_dtype="float32",
        keep_packed=kept.form == "packed",
        sources=kept.sources,
        show_progress=False,
    )


@pytest.mark.parametrize(("platform", "form"), [("cpu", "dequantized"), ("gpu", "packed")])
def test_auto(tmp_path: Path, platform: str, form: str) -> None:
    _, kept = storage(write_tiny_gguf(tmp_path / "m.gguf", types={"ffn": "Q4_0"}), platform)
    assert kept.form == form
    assert len(kept.packed) == (6 if form == "packed" else 0)
    assert (kept.share == PackedShare()) == (form == "dequantized")


@pytest.mark.parametrize("method", ["int8", "int4", "fp8"])
def test_rounded_at_load(tmp_path: Path, method: str) -> None:
    """Layers in the middle are packed; ends, embedding, head and norms are the file's."""
    folder = write_tiny(tmp_path, **DEEP)
    checkpoint, kept = storage(folder, weights="packed", quantization=method)
    assert len(kept.packed) == 2 * 7
    params = params_of(checkpoint, kept)
    plain = load_params(checkpoint, weight_dtype="float32", show_progress=False)
    for number, layer in enumerate(params["layers"]):
        for name in ("q", "k", "v", "o", "gate", "up", "down"):
            is_packed = isinstance(layer[name].value, QuantWeight)
            assert is_packed == (number in (1, 2))
            if not is_packed:
                original = plain["layers"][number][name].value
                np.testing.assert_array_equal(np.asarray(layer[name].value), np.asarray(original))
    assert params["head"].value.dtype == params["embedding"].dtype == jnp.float32
    codes = params["layers"][1]["up"].value.codes
    assert codes.dtype == {"int8": jnp.int8, "int4": jnp.uint8}.get(method, jnp.float8_e4m3fn)


def test_rounded_and_decoded_is_near_the_file(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path, **DEEP)
    checkpoint, kept = storage(folder, quantization="int8")
    assert kept.form == "dequantized"
    params = params_of(checkpoint, kept)
    plain = load_params(checkpoint, weight_dtype="float32", show_progress=False)
    for one, other in zip(jax.tree.leaves(params), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), atol=0.005)
    middle = [tree["layers"][1]["up"].value for tree in (params, plain)]
    assert np.any(np.asarray(middle[0]) != np.asarray(middle[1]))


def test_settings_of_single_layers(tmp_path: Path) -> None:
    asked = {
        "method": "int4",
        "group_size": 16,
        "float_ends": 0,
        "overrides": {r"model\.layers\.0\..*": "float", r".*v_proj": "int8"},
    }
    checkpoint, kept = storage(write_tiny(tmp_path), weights="packed", quantization=asked)
    layers = params_of(checkpoint, kept)["layers"]
    assert layers[0]["v"].value.dtype == jnp.float32
    assert (layers[1]["v"].value.bits, layers[1]["v"].value.group) == (8, 16)
    assert (layers[1]["up"].value.bits, layers[1]["up"].value.group) == (4, 16)


def test_a_rounded_checkpoint_may_be_rounded_again(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", types={"blk": "Q8_0"}, **DEEP)
    checkpoint, kept = storage(path, weights="packed", quantization="int4")
    params = params_of(checkpoint, kept)
    assert [layer["up"].value.bits for layer in params["layers"]] == [8, 4, 4, 8]


def test_a_checkpoint_quantized_with_care_is_not_rounded_again() -> None:
    folder = Path(__file__).parents[1] / "data" / "quant" / "awq_w4_g32"
    with pytest.raises(ConfigError, match="quantized already .awq 4-bit group 32.; leave quant"):
        storage(folder, quantization="int8")


def test_bytes_are_planned_with_what_is_packed(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path, **DEEP)
    checkpoint, kept = storage(folder, weights="packed", quantization="int4")
    config = checkpoint.config
    shapes = abstract_params(config, checkpoint.architecture, "bfloat16", kept.packed)
    norms = (2 * 4 + 1) * 64 * 4
    exact = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes)) - norms
    assert weights_bytes(config, "bfloat16", kept.share) == exact
    assert exact < 0.75 * weights_bytes(config, "bfloat16")


QUANT = Path(__file__).parents[1] / "data" / "quant"


def decided(name: str, **asked: Any) -> tuple[Any, Storage]:
    checkpoint = open_checkpoint(QUANT / name, show_progress=False)
    given = {"weights": "auto", "quantization": None, "platform": "cpu"} | asked
    return checkpoint, decide_storage(checkpoint, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "kind", "group"),
    [
        ("ct_w8a8_dynamic", "int8", 128),
        ("ct_fp8_block", "fp8", 128),
        ("ct_fp8_kv", "fp8", 128),
        ("hf_fp8_block_llama_64x32", "fp8", 32),
    ],
)
def test_inputs_as_the_checkpoint_says(name: str, kind: str, group: int) -> None:
    """On request; and then layers are packed, also where that is not the default."""
    checkpoint, kept = decided(name, activations="checkpoint")
    assert kept.form == "packed" and "rounds inputs" in kept.reason
    params = load_params(
        checkpoint,
        weight_dtype="float32",
        keep_packed=True,
        round_inputs=kept.round_inputs,
        sources=kept.sources,
        show_progress=False,
    )
    weight = params["layers"][0]["q"].value
    assert isinstance(weight, RoundedInputWeight)
    assert (weight.inputs, weight.input_group) == (kind, group)
    shapes = abstract_params(
        checkpoint.config, checkpoint.architecture, "float32", kept.packed, round_inputs=True
    )
    assert jax.tree.structure(shapes) == jax.tree.structure(params)
    assert not decided(name)[1].round_inputs


@pytest.mark.parametrize(
    ("name", "weights"), [("gptq_w4_g32_asym", "packed"), ("ct_w8a8_dynamic", "dequantized")]
)
def test_rounded_inputs_that_cannot_be(name: str, weights: str) -> None:
    """Asked of a checkpoint that says nothing of inputs, or of layers that are not packed."""
    with pytest.raises(ConfigError, match="activations='checkpoint' rounds inputs of packed"):
        decided(name, weights=weights, activations="checkpoint")


def test_fp8_without_a_kernel_is_decoded_where_floats_fit() -> None:
    """A step would decode every matrix. int4 stays packed: there are kernels, if not for all."""
    room = FloatRoom(platform=HOPPER, max_bytes=1 << 30)

    def form(name: str, room: FloatRoom | None = room, **asked: Any) -> str:
        return decided(name, platform="gpu", float_room=room, **asked)[1].form

    assert form("ct_fp8_block") == form("hf_fp8_block_llama_64x32") == "dequantized"
    reason = decided("ct_fp8_block", platform="gpu", float_room=room)[1].reason
    assert "no kernel for fp8 weights here" in reason and "1,073,741,824 that" in reason
    assert form("ct_fp8_block", FloatRoom(platform=HOPPER, max_bytes=1000)) == "packed"
    assert form("ct_fp8_block", None) == "packed"
    assert form("ct_fp8_block", weights="packed") == "packed"
    assert form("ct_fp8_block", activations="checkpoint") == "packed"
    assert form("awq_w4_g32") == "packed"
    ampere = Platform(kind="gpu", compute_capability=(8, 0))
    assert form("ct_fp8_block", FloatRoom(platform=ampere, max_bytes=1 << 30)) == "dequantized"
