"""DEV. The forward function that decoder-only families share.

What differs between them shows in the structure of the parameters (a layer with an
`attention_out_norm` uses it) and in `ModelConfig`; a family whose blocks differ otherwise writes
its own `forward` with this signature.
"""

import jax
import jax.numpy as jnp
from flax import struct

from jaxinfer.cache import PagedKV, PageSlots, page_slots
from jaxinfer.config.geometry import Geometry
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.layers.attention import paged_self_attention
from jaxinfer.layers.linear import linear, matmul
from jaxinfer.layers.mlp import gated_mlp
from jaxinfer.layers.moe import moe
from jaxinfer.layers.norm import rms_norm
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
    keys, values = [], []
    for layer, weights in enumerate(params["layers"]):
        rope = config.layer_ropes[layer]
        with jax.named_scope(f"layer_{layer}"):
            x, pages = decoder_layer(
                x,
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
    x = rms_norm(x, params["final_norm"], config.norm_eps, geometry.norm_kernel)
    beyond = len(keys)
    return x, PagedKV(keys=(*keys, *cache.keys[beyond:]), values=(*values, *cache.values[beyond:]))


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
    out, pages = paged_self_attention(
        _in_norm(x, weights, "attention_norm", config, geometry),
        weights,
        pages,
        slots,
        rope,
        config=config,
        window=window,
        kernel=geometry.attention_kernel,
        norm_kernel=geometry.norm_kernel,
    )
    x = x + _out_norm(out, weights, "attention_out_norm", config, geometry).astype(x.dtype)
    normed = _in_norm(x, weights, "mlp_norm", config, geometry)
    out = _mlp(normed, weights, slots, config, geometry.expert_kernel)
    return x + _out_norm(out, weights, "mlp_out_norm", config, geometry).astype(x.dtype), pages


def _mlp(
    x: jax.Array, weights: dict, slots: PageSlots, config: ModelConfig, kernel: str
) -> jax.Array:
    if "experts" not in weights:
        return gated_mlp(x, weights, config.activation)
    assert config.experts is not None
    is_real = jnp.arange(x.shape[1], dtype=jnp.int32)[None, :] < slots.lengths[:, None]
    options = {"experts": config.experts, "activation": config.activation, "kernel": kernel}
    return moe(x, weights, is_real, **options)


def _in_norm(
    x: jax.Array, weights: dict, name: str, config: ModelConfig, geometry: Geometry
) -> jax.Array:
    """A norm on what a sublayer reads; x itself in a family that norms only what is added."""
    if name not in weights:
        return x
    return rms_norm(x, weights[name], config.norm_eps, geometry.norm_kernel)


def _out_norm(
    out: jax.Array, weights: dict, name: str, config: ModelConfig, geometry: Geometry
) -> jax.Array:
    """A norm on what a sublayer adds; its last product must not merge with that addition."""
    if name not in weights:
        return out
    return rounded(rms_norm(out, weights[name], config.norm_eps, geometry.norm_kernel))
