"""What drafts beside the model: its logits in the model's vocabulary, its tokens, its pages."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.cache import init_cache
from jaxinfer.checkpoint.load import abstract_params
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.models.registry import architecture_named
from jaxinfer.models.transformer import TokenRows
from jaxinfer.runner.forwards import (
    _tiled_shape,
    draft_logits,
    fill_tiles,
    run_draft,
    run_model,
)
from tests.support.records import geometry, model_config

MODEL = model_config(windows=(0, 0))
SMALL = model_config(windows=(0,), vocab_size=317, num_kv_heads=1, head_dim=32)
GEOMETRY = geometry(windows=(0,))


def random_params(config: ModelConfig, seed: int) -> dict[str, Any]:
    shapes = abstract_params(config, architecture_named("llama"), "float32")
    random = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: jnp.asarray(random.normal(0, 0.2, leaf.shape), jnp.float32), shapes
    )


def rows(tokens: list[int]) -> TokenRows:
    tables = np.zeros((1, 2, GEOMETRY.pages_per_row), np.int32)
    tables[0, 0, :2] = [3, 5]
    return TokenRows(
        tokens=jnp.asarray([tokens, tokens], jnp.int32),
        starts=jnp.zeros(2, jnp.int32),
        lengths=jnp.asarray([len(tokens), 0], jnp.int32),  # the second row is empty
        tables=jnp.asarray(tables),
    )


def test_rows_that_fill_tiles_change_nothing() -> None:
    """In 4 rows of 4 tokens the 2 rows of 3 have the same bits, and write the same pages."""
    params, tokens = random_params(MODEL, 1), rows([4, 9, 2])
    made = replace(GEOMETRY, layer_groups=(0, 0))
    plain = run_model(params, init_cache(MODEL, made), tokens, MODEL, made, None)
    made = replace(made, fills_tiles=True)
    filled = run_model(params, init_cache(MODEL, made), tokens, MODEL, made, None)
    for one, other in zip(jax.tree.leaves(plain), jax.tree.leaves(filled), strict=True):
        first = 1 if one.ndim == 4 else 0  # anything may be written to the null page
        np.testing.assert_array_equal(np.asarray(one)[first:], np.asarray(other)[first:])


@pytest.mark.parametrize(
    ("shape", "filled"),
    [((4, 5), (4, 8)), ((20, 1), (32, 1)), ((64, 1), (64, 1)), ((3, 5), (4, 8)), ((1, 5), (2, 8))],
)
def test_the_fewest_rows_that_are_whole_tiles(
    shape: tuple[int, int], filled: tuple[int, int]
) -> None:
    made = TokenRows(
        tokens=jnp.ones(shape, jnp.int32),
        starts=jnp.ones(shape[0], jnp.int32),
        lengths=jnp.full(shape[0], shape[1], jnp.int32),
        tables=jnp.ones((1, shape[0], 2), jnp.int32),
    )
    found = fill_tiles(made, 4)
    assert found.tokens.shape == filled and found.tables.shape == (1, filled[0], 2)
    assert not found.tokens[shape[0] :].any() and not found.tokens[:, shape[1] :].any()
    assert not found.lengths[shape[0] :].any() and found.starts.shape == filled[:1]


@pytest.mark.parametrize(
    ("shape", "group", "why"),
    [
        ((64, 5), 4, "more than a tile"),
        ((4, 5), 12, "8 tokens of 12 heads are more than one tile of attention"),
        ((4, 9), 7, "16 tokens of 7 heads, too"),
    ],
)
def test_rows_that_are_left_as_they_are(shape: tuple[int, int], group: int, why: str) -> None:
    assert _tiled_shape(*shape, group) == shape, why


def test_logits_are_cut_or_padded_to_the_model_s_vocabulary() -> None:
    params, hidden = random_params(SMALL, 1), jnp.ones((2, 64), jnp.float32)
    full = np.asarray(draft_logits(params, hidden, SMALL, 317))
    wide = np.asarray(draft_logits(params, hidden, SMALL, 320))
    np.testing.assert_array_equal(wide[:, :317], full)
    assert (wide[:, 317:] == -np.inf).all()
    narrow = np.asarray(draft_logits(params, hidden, SMALL, 300))
    np.testing.assert_array_equal(narrow, full[:, :300])


def test_a_draft_model_s_pages_take_the_same_tokens_in_the_same_places() -> None:
    """Beside the model's, under the same numbers, whatever heads it has; no other page changes."""
    made = replace(GEOMETRY, layer_groups=(0, 0), draft_layer_groups=(0,))
    params = {**random_params(MODEL, 1), "draft": random_params(SMALL, 2)}
    cache = init_cache(MODEL, made, SMALL)
    assert [keys.shape[1] for keys in cache.keys] == [2, 2, 1]
    hidden, cache = run_model(params, cache, rows([4, 9, 2]), MODEL, made, SMALL)
    for keys in cache.keys:
        touched = np.abs(np.asarray(keys)).max(axis=(1, 3)) > 0  # [P, S]
        assert touched[3, :3].all() and touched[1:].sum() == 3
    alone, _ = run_model(
        random_params(MODEL, 1), init_cache(MODEL, made), rows([4, 9, 2]), MODEL, made, None
    )
    np.testing.assert_array_equal(np.asarray(hidden[0]), np.asarray(alone[0]))


def test_a_token_beyond_the_draft_model_s_table_is_its_last() -> None:
    made = replace(GEOMETRY, layer_groups=(0, 0), draft_layer_groups=(0,))
    params, outputs = random_params(SMALL, 2), []
    for last in (316, 319):
        cache = init_cache(MODEL, made, SMALL)
        outputs.append(np.asarray(run_draft(params, cache, rows([4, last]), SMALL, made)[0][0]))
    np.testing.assert_array_equal(*outputs)
    assert np.isfinite(outputs[0]).all()


def test_the_first_layers_write_into_the_model_s_pages() -> None:
    """What they write is what the model will write there, so nothing of theirs needs a place."""
    params = random_params(MODEL, 1)
    first = replace(MODEL, num_layers=1, windows=(0,), layer_ropes=(0,))
    drafting = {**params, "layers": params["layers"][:1]}
    made = replace(GEOMETRY, layer_groups=(0, 0))
    _, after_draft = run_draft(drafting, init_cache(MODEL, made), rows([4, 9, 2]), first, made)
    _, after_model = run_model(params, init_cache(MODEL, made), rows([4, 9, 2]), MODEL, made, first)
    np.testing.assert_array_equal(
        np.asarray(after_draft.keys[0])[1:], np.asarray(after_model.keys[0])[1:]
    )
    assert len(after_draft.keys) == 2 and not np.asarray(after_draft.keys[1]).any()
