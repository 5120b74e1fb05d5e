"""DEV. The KV cache: key pages and value pages of each layer, as floats or as codes with scales.

Pure functions on pytrees; which page belongs to whom is the scheduler's knowledge. What a page
holds is written once: codes and their scales are never made anew.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from jaxinfer.config.geometry import Geometry
from jaxinfer.config.kv_cache_dtype import array_dtype
from jaxinfer.config.model_config import ModelConfig
from pallas_kernels.paged_attention.pages import (
    HeadScaledPages,
    Pages,
    TokenScaledPages,
    as_stored,
    code_array,
    round_by_head,
    round_by_token,
)

NULL_PAGE = 0  # padded tokens write here; nobody reads it into a result


@struct.dataclass
class PagedKV:
    """The cache of the whole model, and after its layers those of a draft model that has pages of
    its own; every array is donated to each step."""

    keys: tuple[Pages, ...]  # L × [P, K, S, D], codes with their scales where they are quantized
    values: tuple[Pages, ...]  # likewise; they may be of another kind


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
    return jax.eval_shape(lambda: init_cache(config, geometry, draft))


def init_cache(
    config: ModelConfig, geometry: Geometry, draft: ModelConfig | None = None
) -> PagedKV:
    """A cache of zeros, and the fixed scales of an fp8 cache."""
    count = len(geometry.layer_groups)
    models, drafts = geometry.kv_scales[:count], geometry.kv_scales[count:]
    cache = _empty_layers(config, geometry.layer_groups, geometry, models)
    if draft is None:
        return cache
    return join_caches(cache, _empty_layers(draft, geometry.draft_layer_groups, geometry, drafts))


def _empty_layers(
    config: ModelConfig,
    layer_groups: tuple[int, ...],
    geometry: Geometry,
    kv_scales: tuple[tuple[tuple[float, ...], tuple[float, ...]], ...] = (),
) -> PagedKV:
    sides = []
    for side, kind in enumerate(geometry.page_kinds):
        layers = []
        for layer, group in enumerate(layer_groups):
            num_pages = geometry.num_pages[group]
            shape = (num_pages, config.num_kv_heads, geometry.page_tokens, config.head_dim)
            scales = kv_scales[layer][side] if kv_scales else (1.0,)
            layers.append(_empty_pages(kind, shape, scales, as_bits=geometry.pages_hold_bits))
        sides.append(tuple(layers))
    return PagedKV(keys=sides[0], values=sides[1])


def _empty_pages(
    kind: str, shape: tuple[int, ...], scales: tuple[float, ...], *, as_bits: bool
) -> Pages:
    codes = jnp.zeros(shape, array_dtype(kind, as_bits=as_bits))
    if kind == "int8":
        scale_dtype = array_dtype("bfloat16", as_bits=as_bits)
        return TokenScaledPages(codes=codes, scales=jnp.zeros(shape[:3], scale_dtype))
    if kind == "fp8":
        fixed = jnp.broadcast_to(jnp.asarray(scales, jnp.float32), shape[1:2])
        return HeadScaledPages(codes=codes, scales=fixed)
    return codes


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


def write_kv(pages: Pages, new: jax.Array, slots: PageSlots) -> Pages:
    """The pages with the tokens of `new` written to their places.

    Args:
        pages: [P, K, S, D] f32, bf16, or u16 that holds the bits of bf16; or codes with scales.
        new: [B, Q, K, D] – rounded to what the pages hold.
        slots: pages and offsets of the B·Q tokens; only the null page may occur twice.

    Donates: `pages`, where the caller's program does.
    Cost: writes B·Q·K·D values.
    """
    tokens = new.reshape(-1, *new.shape[2:])
    match pages:
        case TokenScaledPages():
            parts = zip(pages, round_by_token(tokens), strict=True)
            return TokenScaledPages(*(_put(array, part, slots) for array, part in parts))
        case HeadScaledPages():
            codes = round_by_head(tokens, pages.scales)
            return pages._replace(codes=_put(pages.codes, codes, slots))
    return _put(pages, tokens, slots)


def _put(array: jax.Array, tokens: jax.Array, slots: PageSlots) -> jax.Array:
    """tokens [B·Q, K, …] at their places in an array [P, K, S, …]."""
    stored = as_stored(tokens, array.dtype)
    return array.at[slots.pages, :, slots.offsets].set(stored)


def copy_pages(
    cache: PagedKV, sources: jax.Array, targets: jax.Array, layer_groups: tuple[int, ...]
) -> PagedKV:
    """The cache with one page of each group copied to another place.

    Args:
        sources: [groups] i32.
        targets: [groups] i32.

    Donates: `cache`, where the caller's program does.
    """

    def copied(array: jax.Array, group: int) -> jax.Array:
        page = lax.dynamic_index_in_dim(array, sources[group], 0)
        return lax.dynamic_update_slice_in_dim(array, page, targets[group], 0)

    return _by_layer(copied, layer_groups, cache)


def read_pages(cache: PagedKV, pages: jax.Array, layer_groups: tuple[int, ...]) -> PagedKV:
    """Pages of each layer: arrays [M, K, S, …], and fixed scales as they are.

    Args:
        pages: [groups, M] i32.
    """
    return _by_layer(lambda array, group: array[pages[group]], layer_groups, cache)


def write_pages(
    cache: PagedKV, pages: jax.Array, content: PagedKV, layer_groups: tuple[int, ...]
) -> PagedKV:
    """The cache with pages overwritten; what `read_pages` gave comes back in any pages.

    Args:
        pages: [groups, M] i32; only the null page may occur twice.
        content: arrays [M, K, S, …].

    Donates: `cache`, where the caller's program does.
    """

    def written(array: jax.Array, group: int, new: jax.Array) -> jax.Array:
        return array.at[pages[group]].set(new)

    return _by_layer(written, layer_groups, cache, content)


def _by_layer(
    change: Callable[..., jax.Array],
    layer_groups: tuple[int, ...],
    cache: PagedKV,
    *others: PagedKV,
) -> PagedKV:
    """The cache with every array of pages changed: `change(array, group, others' arrays)`."""

    def side(pages: tuple[Pages, ...], *other: tuple[Pages, ...]) -> tuple[Pages, ...]:
        layers = zip(pages, layer_groups, *other, strict=True)
        return tuple(_changed(change, one, group, *rest) for one, group, *rest in layers)

    return PagedKV(
        keys=side(cache.keys, *(other.keys for other in others)),
        values=side(cache.values, *(other.values for other in others)),
    )


def _changed(change: Callable[..., jax.Array], pages: Pages, group: int, *others: Pages) -> Pages:
    match pages:
        case TokenScaledPages():
            parts = zip(pages, *others, strict=True)  # type: ignore[arg-type]
            return TokenScaledPages(*(change(one, group, *rest) for one, *rest in parts))
        case HeadScaledPages():  # fixed scales belong to no page
            codes = change(pages.codes, group, *map(code_array, others))
            return pages._replace(codes=codes)
    return change(pages, group, *others)
