"""Every leaf by one tensor, every tensor for one leaf: the cases where others dropped one."""

from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from jaxinfer.checkpoint.checkpoint import open_checkpoint
from jaxinfer.checkpoint.leaf_match import match_leaves
from jaxinfer.errors import CheckpointError, UnsupportedError
from tests.support.tiny_models import (
    TINY_CONFIG,
    TINY_GEMMA3_CONFIG,
    random_weights,
    write_tiny,
    write_tiny_gguf,
)

HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"


def match(model: Path) -> dict[str, str]:
    """Leaf's own name in the kind of file → the tensor that fills it."""
    checkpoint = open_checkpoint(model, show_progress=False)
    leaves = jax.tree.leaves(checkpoint.architecture.leaves(checkpoint.config))
    found = match_leaves(leaves, checkpoint.config, checkpoint.tensors, checkpoint.kind)
    return {getattr(leaf, checkpoint.kind): info.name for leaf, info in found.items()}


@pytest.mark.parametrize("base", [TINY_CONFIG, TINY_GEMMA3_CONFIG])
def test_all_tensors_are_used(tmp_path: Path, base: dict) -> None:
    for model in (
        write_tiny(tmp_path / "hf", base=base),
        write_tiny_gguf(tmp_path / "m.gguf", base=base),
    ):
        found = match(model)
        names = open_checkpoint(model, show_progress=False).tensors.infos
        assert found == {name: name for name in names}


def test_tied_without_head_loads(tmp_path: Path) -> None:
    """BB-01 (a) (vllm#53020)."""
    assert HEAD not in match(write_tiny(tmp_path, tie_word_embeddings=True))


def test_untied_without_head_is_refused(tmp_path: Path) -> None:
    """BB-01 (b): the head stayed random."""
    with pytest.raises(CheckpointError, match="lacks 1 of the 21 .*'lm_head.weight'"):
        match(write_tiny(tmp_path, drop=[HEAD]))


def test_family_default_decides_without_the_key(tmp_path: Path) -> None:
    """BB-01 (c): llama is untied, gemma is tied."""
    tie = ["tie_word_embeddings"]
    with pytest.raises(CheckpointError, match="'lm_head.weight'"):
        match(write_tiny(tmp_path / "llama", drop=[HEAD], drop_keys=tie))
    assert match(write_tiny(tmp_path / "gemma", base=TINY_GEMMA3_CONFIG))


def test_tied_with_only_the_head_stored(tmp_path: Path) -> None:
    """BB-01 (d) (transformers#43429): the one table serves as embedding."""
    table = random_weights(TINY_CONFIG)[HEAD]
    folder = write_tiny(tmp_path, tie_word_embeddings=True, add={HEAD: table}, drop=[EMBEDDING])
    assert match(folder)[EMBEDDING] == HEAD


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_tied_that_stores_the_same_head_too(tmp_path: Path, dtype: Any) -> None:
    table = random_weights(TINY_CONFIG)[EMBEDDING].astype(dtype)
    both = {EMBEDDING: table, HEAD: table}
    assert match(write_tiny(tmp_path, tie_word_embeddings=True, add=both))[EMBEDDING] == EMBEDDING


@pytest.mark.parametrize("change", ["value", "shape", "dtype"])
def test_tied_that_stores_another_head_is_refused(tmp_path: Path, change: str) -> None:
    head = random_weights(TINY_CONFIG | {"tie_word_embeddings": True})[EMBEDDING]
    head = {"shape": head[:319], "dtype": head.astype(np.float64)}.get(change, head).copy()
    if change == "value":
        head[-1, -1] += 1
    folder = write_tiny(tmp_path, tie_word_embeddings=True, add={HEAD: head})
    with pytest.raises(CheckpointError, match="'lm_head.weight' .* differs"):
        match(folder)


@pytest.mark.parametrize("tie", [True, False])
def test_bias_of_the_head_is_refused(tmp_path: Path, tie: bool) -> None:
    """BB-05 (vllm#3767, ANEForge#253): a dropped bias moves the arg max."""
    bias = {"lm_head.bias": np.ones(320, np.float32)}
    with pytest.raises(CheckpointError, match="does not use: 'lm_head.bias'"):
        match(write_tiny(tmp_path, tie_word_embeddings=tie, add=bias))


def test_biases_that_the_config_does_not_announce_are_refused(tmp_path: Path) -> None:
    """BB-05 (mlc-llm#3494)."""
    bias = {"model.layers.0.self_attn.q_proj.bias": np.ones(64, np.float32)}
    with pytest.raises(CheckpointError, match="q_proj.bias"):
        match(write_tiny(tmp_path, add=bias))


def test_old_inverse_frequencies_are_skipped(tmp_path: Path) -> None:
    """BB-05 (vllm#46835)."""
    old = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": np.ones(8) for i in range(2)}
    assert len(match(write_tiny(tmp_path, add=old))) == 21


def test_missing_tensors_are_counted_and_the_first_five_named(tmp_path: Path) -> None:
    drop = [name for name in random_weights(TINY_CONFIG) if ".1." in name]
    with pytest.raises(CheckpointError, match=r"lacks 9 of the 21 .* and 4 more") as caught:
        match(write_tiny(tmp_path, drop=drop))
    assert str(caught.value).count("model.layers.1.") == 5


def test_wrong_shape_names_tensor_and_both_shapes(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    folder = write_tiny(tmp_path, add={name: np.zeros((96, 32), np.float32)})
    with pytest.raises(CheckpointError, match=rf"{name}.*\[96, 32\].*\[96, 64\]"):
        match(folder)


def test_more_layers_than_the_config_says(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path)
    config = (folder / "config.json").read_text().replace('hidden_layers": 2', 'hidden_layers": 1')
    (folder / "config.json").write_text(config)
    with pytest.raises(CheckpointError, match="9 tensors that the model does not use"):
        match(folder)


def test_integers_are_no_weights(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    folder = write_tiny(tmp_path, add={name: np.zeros((96, 64), np.int8)})
    with pytest.raises(UnsupportedError, match=f"{name}.* stored as I8"):
        match(folder)


def test_divisors_are_used_where_the_config_holds_them(tmp_path: Path) -> None:
    divisors = {"rope_freqs.weight": np.ones(8, np.float32)}
    assert len(match(write_tiny_gguf(tmp_path / "m.gguf", add=divisors))) == 21
    with pytest.raises(CheckpointError, match="rope_freqs.weight"):
        match(write_tiny_gguf(tmp_path / "g.gguf", base=TINY_GEMMA3_CONFIG, add=divisors))


def test_unknown_gguf_tensor_is_refused(tmp_path: Path) -> None:
    extra = {"rope_factors_long.weight": np.ones(8, np.float32)}
    with pytest.raises(CheckpointError, match="rope_factors_long.weight"):
        match(write_tiny_gguf(tmp_path / "m.gguf", add=extra))
