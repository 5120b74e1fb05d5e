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

from jaxinfer.cache import PagedKV, join_caches, split_cache
from jaxinfer.config.geometry import Geometry
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.models.registry import architecture_named
from jaxinfer.models.transformer import TokenRows, logits


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
    hidden, cache = architecture_named(config.architecture).forward(
        params, cache, rows, config, geometry
    )
    if draft is not None and geometry.draft_layer_groups:
        _, cache = run_draft(params["draft"], cache, rows, draft, geometry)
    return hidden, cache


def run_draft(
    params: Any, cache: PagedKV, rows: TokenRows, draft: ModelConfig, geometry: Geometry
) -> tuple[jax.Array, PagedKV]:
    """Runs what drafts over the rows, in its own pages or in the model's."""
    forward = architecture_named(draft.architecture).forward
    # The model may have rows for tokens that a draft model of the same vocabulary lacks (padding).
    rows = replace(rows, tokens=jnp.minimum(rows.tokens, draft.vocab_size - 1))
    if not geometry.draft_layer_groups:
        return forward(params, cache, rows, draft, geometry)
    models, own = split_cache(cache, len(geometry.layer_groups))
    place = replace(geometry, layer_groups=geometry.draft_layer_groups)
    with jax.named_scope("draft"):
        hidden, own = forward(params, own, rows, draft, place)
    return hidden, join_caches(models, own)


def draft_logits(params: Any, hidden: jax.Array, draft: ModelConfig, vocab_size: int) -> jax.Array:
    """[W, E] → [W, V] f32, V of the model: tokens that only one of the two has are never drafted.

    Example: V 4 of the model, 3 of the draft model: [a b c] → [a b c -inf].
    """
    scores = logits(params, hidden, draft)[:, :vocab_size]
    missing = ((0, 0), (0, vocab_size - scores.shape[1]))
    return jnp.pad(scores, missing, constant_values=-jnp.inf)
