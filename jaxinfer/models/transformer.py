"""DEV. The forward function that decoder-only families share.

What differs between them shows in the structure of the parameters (a layer with an
`attention_out_norm` uses it) and in `ModelConfig`; a family whose blocks differ otherwise writes
its own `forward` with this signature.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxinfer.cache import PagedKV, PageSlots, page_slots
from jaxinfer.config.geometry import Geometry
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.layers.attention import paged_self_attention
from jaxinfer.layers.linear import add_parts, linear, linear_parts, matmul
from jaxinfer.layers.mlp import gated_rows
from jaxinfer.layers.moe import moe
from jaxinfer.layers.norm import add_rms_norm, rms_norm
from jaxinfer.layers.rope import RopeTable, rope_table
from pallas_kernels.paged_attention import Pages
from pallas_kernels.rounding import rounded


@struct.dataclass
class TokenRows:
    """The tokens of one step and where they stand."""

    tokens: jax.Array  # [B, Q] i32; padding holds any valid id
    starts: jax.Array  # [B] i32, position of a row's first token
    lengths: jax.Array  # [B] i32, real tokens in a row; 0 for an empty row
    tables: jax.Array  # [groups, B, N] i32, page tables of each cache group


class Added(NamedTuple):
    """What a sublayer adds to the residual stream."""

    parts: jax.Array  # [parts, B, Q, E] f32, added up in order
    norm: jax.Array | None  # [E] f32, of a norm on their sum; None in most families


def forward(
    params: dict, cache: PagedKV, rows: TokenRows, config: ModelConfig, geometry: Geometry
) -> tuple[jax.Array, PagedKV]:
    """Runs all layers over the rows.

    Args:
        params: arrays in the structure of the architecture's leaves.
        cache: pages of all layers; those of further layers, which are not this model's, pass by.
        rows: tokens [B, Q].

    Returns:
        [B, Q, E] in the activation dtype, final norm applied, and the cache with the new tokens.

    Donates: the cache, where the caller's program does.
    """
    num_tokens = rows.tokens.shape[1]
    positions = rows.starts[:, None] + jnp.arange(num_tokens, dtype=jnp.int32)[None, :]
    ropes = [
        rope_table(rope, positions, config.head_dim, geometry.max_model_len)
        for rope in config.ropes
    ]
    slots = [
        page_slots(table, rows.starts, rows.lengths, num_tokens, geometry.page_tokens)
        for table in rows.tables
    ]
    x = embed(params["embedding"], rows.tokens, config, geometry)
    keys, values, added = [], [], None
    for layer, weights in enumerate(params["layers"]):
        rope = config.layer_ropes[layer]
        with jax.named_scope(f"layer_{layer}"):
            x, added, pages = _block(
                x,
                added,
                weights,
                (cache.keys[layer], cache.values[layer]),
                slots[geometry.layer_groups[layer]],
                None if rope is None else ropes[rope],
                config,
                config.windows[layer],
                geometry,
            )
        keys.append(pages[0])
        values.append(pages[1])
    _, hidden = _add_norm(x, added, params["final_norm"], config, geometry)
    beyond = len(keys)
    return hidden, PagedKV(
        keys=(*keys, *cache.keys[beyond:]), values=(*values, *cache.values[beyond:])
    )


def embed(
    embedding: jax.Array, tokens: jax.Array, config: ModelConfig, geometry: Geometry
) -> jax.Array:
    """[B, Q] ids → [B, Q, E] in the activation dtype, scaled as the family does."""
    x = embedding[tokens].astype(jnp.float32)
    if config.embedding_scale != 1.0:
        x = rounded(x * jnp.float32(config.embedding_scale))
    return x.astype(geometry.activation_dtype)


def logits(params: dict, hidden: jax.Array, config: ModelConfig) -> jax.Array:
    """The vocabulary scores of hidden rows.

    Args:
        params: with a `head`, or tied to the `embedding`.
        hidden: [..., E] – final norm applied.

    Returns:
        [..., V] f32.
    """
    with jax.named_scope("head"):
        if config.tie_embeddings:
            scores = matmul(hidden, params["embedding"])
        else:
            scores = linear(hidden, params["head"])
        if config.final_softcap:
            cap = jnp.float32(config.final_softcap)
            scores = rounded(cap * jnp.tanh(scores / cap))
        return scores


def decoder_layer(
    x: jax.Array,
    weights: dict,
    pages: tuple[Pages, Pages],
    slots: PageSlots,
    rope: RopeTable | None,
    config: ModelConfig,
    window: int,
    geometry: Geometry,
) -> tuple[jax.Array, tuple[Pages, Pages]]:
    """One layer over the rows of a step.

    Args:
        x: [B, Q, E] – in the activation dtype.
        weights: the layer's part of the parameters.
        pages, slots, rope, window: as `paged_self_attention` takes them.

    Returns:
        [B, Q, E] – what the next layer reads, and the pages with the new tokens.
    """
    x, added, pages = _block(x, None, weights, pages, slots, rope, config, window, geometry)
    return _add_norm(x, added, None, config, geometry)[0], pages


def _block(
    x: jax.Array,
    added: Added | None,
    weights: dict,
    pages: tuple[Pages, Pages],
    slots: PageSlots,
    rope: RopeTable | None,
    config: ModelConfig,
    window: int,
    geometry: Geometry,
) -> tuple[jax.Array, Added, tuple[Pages, Pages]]:
    """The stream without what the last sublayer adds to it, and that: the next norm adds it."""
    x, normed = _add_norm(x, added, weights.get("attention_norm"), config, geometry)
    out, pages = paged_self_attention(
        normed,
        weights,
        pages,
        slots,
        rope,
        config=config,
        window=window,
        kernel=geometry.attention_kernel,
        norm_kernel=geometry.norm_kernel,
        write_kernel=geometry.write_kernel,
    )
    added = Added(out, weights.get("attention_out_norm"))
    x, normed = _add_norm(x, added, weights.get("mlp_norm"), config, geometry)
    out = _mlp(normed, weights, slots, config, geometry.expert_kernel)
    return x, Added(out, weights.get("mlp_out_norm")), pages


def _mlp(
    x: jax.Array, weights: dict, slots: PageSlots, config: ModelConfig, kernel: str
) -> jax.Array:
    """[parts, B, Q, E] f32, whose sum in order is what the mlp adds."""
    if "experts" not in weights:
        return linear_parts(gated_rows(x, weights, config.activation), weights["down"])
    assert config.experts is not None
    is_real = jnp.arange(x.shape[1], dtype=jnp.int32)[None, :] < slots.lengths[:, None]
    options = {"experts": config.experts, "activation": config.activation, "kernel": kernel}
    return moe(x, weights, is_real, **options)[None]


def _add_norm(
    x: jax.Array,
    added: Added | None,
    scale: jax.Array | None,
    config: ModelConfig,
    geometry: Geometry,
) -> tuple[jax.Array, jax.Array]:
    """The stream with what is added to it, and what the next sublayer reads: its norm, or the
    stream itself in a family that norms only what is added."""
    eps = config.norm_eps
    if added is None:
        normed = x if scale is None else rms_norm(x, scale, eps, geometry.norm_kernel)
        return x, normed
    if scale is not None:
        return add_rms_norm(x, added.parts, scale, added.norm, eps, geometry.residual_kernel)
    addend = add_parts(added.parts)
    if added.norm is not None:  # whose last product must not merge with the addition
        addend = rounded(rms_norm(addend, added.norm, eps, geometry.norm_kernel))
    x = x + addend.astype(x.dtype)
    return x, x
