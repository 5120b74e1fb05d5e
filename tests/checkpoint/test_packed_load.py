"""Parameters that stay packed: the same numbers as decoded ones, in the bytes that theory gives."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.checkpoint.checkpoint import find_sources, open_checkpoint
from jaxinfer.checkpoint.load import abstract_params, load_params, packed_forms
from jaxinfer.layers.linear import matmul
from jaxinfer.layers.weights import (
    BiasedWeight,
    BlockScaledWeight,
    OffsetWeight,
    PermutedWeight,
    QuantWeight,
    Weight,
    ZeroPointWeight,
)
from tests.support.tiny_models import write_tiny, write_tiny_gguf

QUANT = Path(__file__).parents[1] / "data" / "quant"
KINDS = {
    "autoawq_pack_w4_g32": ZeroPointWeight,
    "awq_w4_g32": QuantWeight,
    "ct_fp8_block": BlockScaledWeight,
    "ct_w8a8_dynamic": QuantWeight,
    "gptq_w4_g32_descact": PermutedWeight,
    "gptq_w8_g32_sym": QuantWeight,
    "hf_fp8_block_llama_64x32": BlockScaledWeight,
    "gguf_llama_q4_0": QuantWeight,
    "gguf_llama_q4_1": OffsetWeight,
    "gguf_kq_q5_k": OffsetWeight,
    "gguf_kq_q6_k": QuantWeight,
    "gguf_gemma3_text_gguf_q8_0": QuantWeight,
}


def opened(name: str) -> Any:
    path = QUANT / name
    model = path / "model.gguf" if name.startswith("gguf") else path
    return open_checkpoint(model, show_progress=False)


def load(checkpoint: Any, **options: Any) -> Any:
    return load_params(checkpoint, weight_dtype="float32", show_progress=False, **options)


def linears(params: Any) -> list[Any]:
    """Every linear layer of a model."""

    def is_linear(node: Any) -> bool:
        return isinstance(node, Weight | BiasedWeight)

    leaves = jax.tree.leaves(params, is_leaf=is_linear)
    return [node for node in leaves if is_linear(node)]


def matrix_of(weight: Any) -> np.ndarray:
    """The matrix that a record stands for: what it makes of the identity."""
    plain = weight.value
    if isinstance(plain, jax.Array):
        return np.asarray(plain)
    inner = plain.matrix if isinstance(plain, PermutedWeight) else plain
    columns = inner.codes.shape[1] * (2 if inner.bits == 4 else 1)
    return np.asarray(jax.jit(matmul)(jnp.eye(columns, dtype=jnp.float32), plain)).T


@pytest.mark.parametrize("name", KINDS)
def test_packed_and_decoded_weights_are_the_same_to_the_bit(name: str) -> None:
    """Rows of q and k that a GGUF file interleaves are put back in packed form too."""
    checkpoint = opened(name)
    packed, plain = load(checkpoint, keep_packed=True), load(checkpoint)
    assert KINDS[name] in {type(weight.value) for weight in linears(packed)}
    for one, other in zip(linears(packed), linears(plain), strict=True):
        np.testing.assert_array_equal(matrix_of(one), np.asarray(other.value))


@pytest.mark.parametrize("name", KINDS)
def test_shapes_are_known_before_anything_is_read(name: str) -> None:
    checkpoint = opened(name)
    forms = packed_forms(find_sources(checkpoint))
    config, architecture = checkpoint.config, checkpoint.architecture
    shapes = abstract_params(config, architecture, "float32", forms)
    params = load(checkpoint, keep_packed=True)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), params) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), shapes
    )
    packed = [weight.value for weight in linears(params) if not hasattr(weight.value, "shape")]
    num_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(packed))
    assert num_bytes == sum(form.num_bytes for form in forms.values()) > 0


@pytest.mark.parametrize("block_bytes", [1, 4 * 64 * 40])
def test_blocks_of_any_size_give_the_same(
    block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("gptq_w4_g32_asym", "ct_w4a16_g128_asym", "hf_fp8_block_llama_64x32"):
        checkpoint = opened(name)
        expected = load(checkpoint, keep_packed=True)
        with monkeypatch.context() as patch:
            patch.setattr("jaxinfer.checkpoint.load._BLOCK_BYTES", block_bytes)
            found = load(checkpoint, keep_packed=True)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_biases_stay_beside_packed_matrices(tmp_path: Path) -> None:
    """A llama GGUF file interleaves the biases of q and k as it does the rows."""
    options: dict[str, Any] = {"attention_bias": True, "mlp_bias": True}
    path = write_tiny_gguf(tmp_path / "m.gguf", types={"attn": "Q8_0"}, **options)
    plain = load(open_checkpoint(write_tiny(tmp_path / "hf", **options), show_progress=False))
    packed = load(open_checkpoint(path, show_progress=False), keep_packed=True)
    for name in ("q", "k", "v", "o"):
        weight = packed["layers"][0][name]
        assert isinstance(weight, BiasedWeight) and isinstance(weight.value, QuantWeight)
        original = plain["layers"][0][name]
        np.testing.assert_array_equal(np.asarray(weight.bias), np.asarray(original.bias))
        np.testing.assert_allclose(matrix_of(weight), np.asarray(original.value), atol=0.01)


def test_embeddings_and_norms_stay_float(tmp_path: Path) -> None:
    types = {"": "Q8_0"}
    path = write_tiny_gguf(tmp_path / "m.gguf", types=types)
    params = load(open_checkpoint(path, show_progress=False), keep_packed=True)
    assert params["embedding"].dtype == params["final_norm"].dtype == jnp.float32
    assert isinstance(params["head"].value, QuantWeight)
