"""DEV. The model over the tokens of a step, and what drafts for it.

A draft model with pages of its own runs beside the model in every step, over the same tokens, page
tables and positions: its layers lie behind the model's in one cache. So whatever is done to a page
(shared, copied, swapped, freed) is right for both.

    cache:   | layers of the model | layers of a draft model |
    pages:       7  9  4  …             7  9  4  …              one table, one allocator

A model that drafts for itself has no such layers: it reads the pages that the model has written,
and writes at positions where the verify step of the same round writes over it.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.cache import PagedKV, join_caches, split_cache
from jaxinfer.config.geometry import Geometry
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.models.registry import architecture_named
from jaxinfer.models.transformer import TokenRows, logits
from pallas_kernels.paged_attention.tiles import is_decode
from pallas_kernels.quant_matmul.tiles import ROW_CHOICES


def run_model(
    params: Any,
    cache: PagedKV,
    rows: TokenRows,
    config: ModelConfig,
    geometry: Geometry,
    draft: ModelConfig | None,
) -> tuple[jax.Array, PagedKV]:
    """Runs the model over the rows; a draft model's pages take the same tokens.

    Args:
        params: the model's, and under "draft" those of what drafts.

    Returns:
        [B, Q, E] – hidden rows of the model; the cache.
    """
    hidden, cache = _forward(params, cache, rows, config, geometry)
    if draft is not None and geometry.draft_layer_groups:
        _, cache = run_draft(params["draft"], cache, rows, draft, geometry)
    return hidden, cache


def run_draft(
    params: Any, cache: PagedKV, rows: TokenRows, draft: ModelConfig, geometry: Geometry
) -> tuple[jax.Array, PagedKV]:
    """Runs what drafts over the rows, in its own pages or in the model's."""
    # The model may have rows for tokens that a draft model of the same vocabulary lacks (padding).
    rows = replace(rows, tokens=jnp.minimum(rows.tokens, draft.vocab_size - 1))
    if not geometry.draft_layer_groups:
        return _forward(params, cache, rows, draft, geometry)
    models, own = split_cache(cache, len(geometry.layer_groups))
    place = replace(geometry, layer_groups=geometry.draft_layer_groups)
    with jax.named_scope("draft"):
        hidden, own = _forward(params, own, rows, draft, place)
    return hidden, join_caches(models, own)


def _forward(
    params: Any, cache: PagedKV, rows: TokenRows, config: ModelConfig, geometry: Geometry
) -> tuple[jax.Array, PagedKV]:
    """A model over the rows; where kernels multiply, over whole tiles of them."""
    if geometry.fills_tiles:
        filled = fill_tiles(rows, config.num_heads // config.num_kv_heads)
    else:
        filled = rows
    run = architecture_named(config.architecture).forward
    hidden, cache = run(params, cache, filled, config, geometry)
    num_rows, num_queries = rows.tokens.shape
    return hidden[:num_rows, :num_queries], cache


def fill_tiles(rows: TokenRows, group: int) -> TokenRows:
    """The rows with tokens that nobody wants behind them, up to whole tiles of the products.

    Else every product of every layer would fill its rows up and cut its result, each a launch. A
    row's tokens stay first; its length leaves the others out, and whole rows are empty.

    Example: 4 rows of 5 tokens (20, tiles of 32) → 4 rows of 8; 20 rows of 1 → 32 rows.

    Args:
        group: query heads of a kv head.
    """
    num_rows, num_queries = rows.tokens.shape
    more_rows, more_queries = np.subtract(
        _tiled_shape(num_rows, num_queries, group), (num_rows, num_queries)
    )
    return TokenRows(
        tokens=jnp.pad(rows.tokens, ((0, more_rows), (0, more_queries))),
        starts=jnp.pad(rows.starts, (0, more_rows)),
        lengths=jnp.pad(rows.lengths, (0, more_rows)),
        tables=jnp.pad(rows.tables, ((0, 0), (0, more_rows), (0, 0))),
    )


def _tiled_shape(num_rows: int, num_queries: int, group: int) -> tuple[int, int]:
    """The fewest rows and tokens a row, no less than these, that are whole tiles together.

    As they are where there are more than one tile holds (XLA multiplies floats then), or where
    attention would change its kernel, and so the order of its sums.
    """
    count = num_rows * num_queries
    if count > ROW_CHOICES[-1]:
        return num_rows, num_queries
    decodes = is_decode(num_queries, group, 1)
    for total in (size for size in ROW_CHOICES if size >= count):
        for queries in range(num_queries, total // num_rows + 1):
            if total % queries == 0 and is_decode(queries, group, 1) == decodes:
                return total // queries, queries
    return num_rows, num_queries


def draft_logits(params: Any, hidden: jax.Array, draft: ModelConfig, vocab_size: int) -> jax.Array:
    """[W, E] → [W, V] f32, V of the model: tokens that only one of the two has are never drafted.

    Example: V 4 of the model, 3 of the draft model: [a b c] → [a b c -inf].
    """
    scores = logits(params, hidden, draft)[:, :vocab_size]
    missing = ((0, 0), (0, vocab_size - scores.shape[1]))
    return jnp.pad(scores, missing, constant_values=-jnp.inf)
