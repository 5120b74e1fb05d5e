"""DEV. The KV cache: one array of key pages and one of value pages a layer.

Pure functions on pytrees; which page belongs to whom is the scheduler's knowledge.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from jaxinfer.config.geometry import Geometry
from jaxinfer.config.model_config import ModelConfig

NULL_PAGE = 0  # padded tokens write here; nobody reads it into a result


@struct.dataclass
class PagedKV:
    """The cache of the whole model, and after its layers those of a draft model that has pages of
    its own; every array is donated to each step."""

    keys: tuple[jax.Array, ...]  # L × [P, K, S, D]
    values: tuple[jax.Array, ...]  # L × [P, K, S, D]


@struct.dataclass
class PageSlots:
    """Where the tokens of one step go and which pages its rows read, for one cache group."""

    table: jax.Array  # [B, N] i32, page of each S positions of a row
    starts: jax.Array  # [B] i32, position of a row's first token
    lengths: jax.Array  # [B] i32, real tokens in a row; 0 for an empty row
    pages: jax.Array  # [B·Q] i32, page that each token is written to; padding: the null page
    offsets: jax.Array  # [B·Q] i32, its place in that page


def abstract_cache(
    config: ModelConfig, geometry: Geometry, draft: ModelConfig | None = None
) -> PagedKV:
    """Shapes of the cache without memory behind them.

    draft: a draft model; where it has pages of its own, its layers come after the model's.
    """
    arrays = _layer_shapes(config, geometry.layer_groups, geometry)
    if draft is not None:
        arrays += _layer_shapes(draft, geometry.draft_layer_groups, geometry)
    return PagedKV(keys=arrays, values=arrays)


def _layer_shapes(
    config: ModelConfig, layer_groups: tuple[int, ...], geometry: Geometry
) -> tuple[jax.Array, ...]:
    heads, size = config.num_kv_heads, config.head_dim
    return tuple(
        jax.ShapeDtypeStruct(  # type: ignore[misc]  # shapes in place of arrays
            (geometry.num_pages[group], heads, geometry.page_tokens, size),
            jnp.dtype(geometry.page_dtype),
        )
        for group in layer_groups
    )


def init_cache(
    config: ModelConfig, geometry: Geometry, draft: ModelConfig | None = None
) -> PagedKV:
    """A cache of zeros."""
    return jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), abstract_cache(config, geometry, draft)
    )


def split_cache(cache: PagedKV, num_layers: int) -> tuple[PagedKV, PagedKV]:
    """The first `num_layers` layers and the others."""
    return (
        PagedKV(keys=cache.keys[:num_layers], values=cache.values[:num_layers]),
        PagedKV(keys=cache.keys[num_layers:], values=cache.values[num_layers:]),
    )


def join_caches(first: PagedKV, second: PagedKV) -> PagedKV:
    """The layers of two caches, one after the other."""
    return PagedKV(keys=first.keys + second.keys, values=first.values + second.values)


def page_slots(
    table: jax.Array, starts: jax.Array, lengths: jax.Array, num_tokens: int, page_tokens: int
) -> PageSlots:
    """Where each of `num_tokens` tokens a row is written.

    Example: page_tokens 4, table row [7 9], start 3, length 2 of 3 tokens → positions 3 4 (5):
    pages [7 9 0], offsets [3 0 1].

    Args:
        table: [B, N] i32.
        starts: [B] i32.
        lengths: [B] i32.
        num_tokens: Q, tokens a row with padding.
        page_tokens: S.
    """
    index = jnp.arange(num_tokens, dtype=jnp.int32)[None, :]
    positions = starts[:, None] + index  # [B, Q]
    column = jnp.minimum(positions // page_tokens, table.shape[1] - 1)
    pages = jnp.take_along_axis(table, column, axis=1)
    pages = jnp.where(index < lengths[:, None], pages, NULL_PAGE)
    return PageSlots(
        table=table,
        starts=starts,
        lengths=lengths,
        pages=pages.reshape(-1),
        offsets=lax.rem(positions, jnp.int32(page_tokens)).reshape(-1),
    )


def write_kv(pages: jax.Array, new: jax.Array, slots: PageSlots) -> jax.Array:
    """The pages with the tokens of `new` written to their places.

    Args:
        pages: [P, K, S, D] f32, bf16, or u16 that holds the bits of bf16.
        new: [B, Q, K, D] – rounded to what the pages hold.
        slots: pages and offsets of the B·Q tokens; only the null page may occur twice.

    Donates: `pages`, where the caller's program does.
    Cost: writes B·Q·K·D values.
    """
    tokens = new.reshape(-1, *new.shape[2:])
    if pages.dtype == jnp.uint16:
        tokens = lax.bitcast_convert_type(tokens.astype(jnp.bfloat16), jnp.uint16)
    return pages.at[slots.pages, :, slots.offsets].set(tokens.astype(pages.dtype))


def copy_pages(
    cache: PagedKV, sources: jax.Array, targets: jax.Array, layer_groups: tuple[int, ...]
) -> PagedKV:
    """The cache with one page of each group copied to another place.

    Args:
        sources: [groups] i32.
        targets: [groups] i32.

    Donates: `cache`, where the caller's program does.
    """

    def copied(pages: jax.Array, group: int) -> jax.Array:
        page = lax.dynamic_index_in_dim(pages, sources[group], 0)
        return lax.dynamic_update_slice_in_dim(pages, page, targets[group], 0)

    return _by_layer(copied, cache, layer_groups)


def read_pages(cache: PagedKV, pages: jax.Array, layer_groups: tuple[int, ...]) -> PagedKV:
    """Pages of each layer: arrays [M, K, S, D].

    Args:
        pages: [groups, M] i32.
    """
    return _by_layer(lambda array, group: array[pages[group]], cache, layer_groups)


def write_pages(
    cache: PagedKV, pages: jax.Array, content: PagedKV, layer_groups: tuple[int, ...]
) -> PagedKV:
    """The cache with pages overwritten; what `read_pages` gave comes back in any pages.

    Args:
        pages: [groups, M] i32; only the null page may occur twice.
        content: arrays [M, K, S, D].

    Donates: `cache`, where the caller's program does.
    """
    return PagedKV(
        keys=tuple(
            array.at[pages[group]].set(new)
            for array, new, group in zip(cache.keys, content.keys, layer_groups, strict=True)
        ),
        values=tuple(
            array.at[pages[group]].set(new)
            for array, new, group in zip(cache.values, content.values, layer_groups, strict=True)
        ),
    )


def _by_layer(change, cache: PagedKV, layer_groups: tuple[int, ...]) -> PagedKV:
    return PagedKV(
        keys=tuple(map(change, cache.keys, layer_groups)),
        values=tuple(map(change, cache.values, layer_groups)),
    )
