"""One description of a leaf: shapes follow from the config, names from both formats."""

from dataclasses import replace
from pathlib import Path

import jax
import pytest

from jaxinfer.checkpoint.hf_config import read_hf_config
from jaxinfer.models.spec import Leaf
from tests.support.tiny_models import TINY_CONFIG, TINY_GEMMA3_CONFIG, hf_shapes, write_tiny


@pytest.mark.parametrize("raw", [TINY_CONFIG, TINY_GEMMA3_CONFIG])
def test_leaves_are_the_tensors_of_the_checkpoint(raw: dict, tmp_path: Path) -> None:
    config, architecture, _ = read_hf_config(write_tiny(tmp_path / "tiny", base=raw))
    leaves = jax.tree.leaves(architecture.leaves(config))
    assert {leaf.hf: leaf.shape for leaf in leaves} == hf_shapes(raw)
    assert len({leaf.gguf for leaf in leaves}) == len(leaves)
    for leaf in leaves:
        assert isinstance(leaf, Leaf) and len(leaf.axes) == len(leaf.shape)


def test_biases_and_tied_heads_change_the_structure(tmp_path: Path) -> None:
    config, architecture, _ = read_hf_config(write_tiny(tmp_path / "tiny"))
    names = {leaf.hf for leaf in jax.tree.leaves(architecture.leaves(config))}
    biased = replace(config, attention_bias=True, attention_out_bias=True, mlp_bias=True)
    added = {leaf.hf for leaf in jax.tree.leaves(architecture.leaves(biased))} - names
    assert len(added) == 7 * config.num_layers and all(name.endswith(".bias") for name in added)
    tied = replace(config, tie_embeddings=True)
    assert names - {leaf.hf for leaf in jax.tree.leaves(architecture.leaves(tied))} == {
        "lm_head.weight"
    }
