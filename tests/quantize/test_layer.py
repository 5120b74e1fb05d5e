"""Folding changes no output; what is observed is what the matrices read."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxinfer.checkpoint.checkpoint import open_checkpoint
from jaxinfer.checkpoint.storage import find_sources
from jaxinfer.quantize.layer import STAGES, Layer, fold, read_layer, shared_columns, tied
from jaxinfer.quantize.layer_programs import LayerPrograms
from jaxinfer.quantize.matrix_plan import layer_trees
from tests.support.family_fixtures import read_fixture

SHAPE = (2, 24)
FAMILIES = ("gemma", "gemma2_bias", "gemma3", "olmo2", "phi3", "qwen3", "smollm3", "qwen2_window")


def opened(folder: Path, number: int = 0) -> tuple[Any, Layer]:
    checkpoint = open_checkpoint(folder)
    trees = layer_trees(checkpoint.config, checkpoint.architecture)
    layer = read_layer(trees[number], find_sources(checkpoint), checkpoint.kind)
    return checkpoint.config, layer


def hidden_rows(width: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((*SHAPE, width), np.float32)


@pytest.mark.parametrize("name", FAMILIES)
def test_folded_scales_leave_outputs_as_they_are(name: str, tmp_path: Path) -> None:
    config, layer = opened(read_fixture(name).write(tmp_path))
    programs, hidden = LayerPrograms(config, SHAPE), hidden_rows(config.hidden_size)
    before = programs.run(0, layer, hidden)
    folded = 0
    for number, stage in enumerate(STAGES):
        if layer.has(stage.producer):
            folded += 1
            heads = shared_columns(stage, config)
            width = layer.value(stage.readers[0]).shape[1]
            random = np.random.default_rng(number)
            scales = np.exp(random.standard_normal(width)).astype(np.float32)
            fold(layer, stage, tied(scales, heads), heads)
    after = programs.run(0, layer, hidden)
    assert folded == (2 if name == "olmo2" else 4)
    scale = np.abs(before - hidden).max()
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-5 * scale)


def test_scales_that_differ_between_query_heads_of_a_group_are_no_scales(tmp_path: Path) -> None:
    """The check above can fail."""
    config, layer = opened(read_fixture("qwen3").write(tmp_path))
    programs, hidden = LayerPrograms(config, SHAPE), hidden_rows(config.hidden_size)
    before, stage = programs.run(0, layer, hidden), STAGES[1]
    scales = np.exp(np.linspace(-1, 1, layer.value("o").shape[1])).astype(np.float32)
    fold(layer, stage, scales, shared_columns(stage, config))
    assert np.abs(programs.run(0, layer, hidden) - before).max() > 1e-3


def test_tied_scales() -> None:
    assert tied(np.array([1, 2, 4, 8], np.float32), (1, 2, 2)).tolist() == [2, 4, 2, 4]
    assert tied(np.array([1, 2], np.float32), None).tolist() == [1, 2]


def test_observed_inputs_are_the_normed_ones(tmp_path: Path) -> None:
    config, layer = opened(read_fixture("qwen3").write(tmp_path))
    hidden = hidden_rows(config.hidden_size)
    seen = LayerPrograms(config, SHAPE).observe(0, layer, hidden, ["q", "down"])
    rows = hidden.reshape(-1, config.hidden_size).astype(np.float64)
    normed = rows / np.sqrt((rows**2).mean(axis=1, keepdims=True) + config.norm_eps)
    normed *= layer.value("attention_norm")
    np.testing.assert_allclose(seen["q"].gram, normed.T @ normed, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(seen["q"].mean, np.abs(normed).mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(seen["q"].largest, np.abs(normed).max(axis=0), rtol=1e-5)
    assert seen["down"].gram.shape == (config.mlp_size,) * 2 and seen["down"].num_tokens == 48


def test_layers_one_by_one_are_the_model(tmp_path: Path, forward_logits: Any) -> None:
    """Windows and ropes of their own: gemma3's layers differ."""
    fixture = read_fixture("gemma3")
    folder, ids = fixture.write(tmp_path), fixture.expected["ids1"].astype(np.int32)
    config, _ = opened(folder)
    programs = LayerPrograms(config, (1, len(ids)))
    hidden = programs.embed(fixture.weights["model.embed_tokens.weight"], ids[None])
    for number in range(config.num_layers):
        hidden = programs.run(number, opened(folder, number)[1], hidden)
    norm = 1 + fixture.weights["model.norm.weight"]
    rows = hidden[0] / np.sqrt((hidden[0] ** 2).mean(axis=1, keepdims=True) + config.norm_eps)
    logits = (rows * norm) @ fixture.weights["model.embed_tokens.weight"].T
    np.testing.assert_allclose(logits, fixture.expected["logits1"], rtol=0, atol=1e-3)
