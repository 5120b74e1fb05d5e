"""DEV. Attention over the paged cache: project, rotate, write pages, attend, project back."""

import jax
import jax.numpy as jnp

from jaxinfer.cache import PageSlots, write_kv
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.layers.linear import linear, linear_parts
from jaxinfer.layers.norm import rms_norm
from jaxinfer.layers.rope import RopeTable, apply_rope
from pallas_kernels.paged_attention import Pages, paged_attention
from pallas_kernels.rotate_write import HeadNorms, rotate_write


def paged_self_attention(
    x: jax.Array,
    weights: dict,
    pages: tuple[Pages, Pages],
    slots: PageSlots,
    rope: RopeTable | None,
    *,
    config: ModelConfig,
    window: int,
    kernel: str,
    norm_kernel: str = "auto",
    write_kernel: str = "reference",
) -> tuple[jax.Array, tuple[Pages, Pages]]:
    """One layer's attention; new keys and values go to the pages first, then pages are read.

    Args:
        x: [B, Q, E] – the normed input.
        weights: records q, k and v, or all in one, qkv; o; with `config.qk_norm`, scales q_norm
            and k_norm, [D] to norm each head or [H·D] and [K·D] to norm all together; `sinks` [H]
            f32 where the family has them.
        pages: the layer's key and value pages, each [P, K, S, D] or codes with their scales.
        slots: where each token is written and which pages each row reads.
        rope: the rotation of each token; None where nothing is turned.
        window: tokens a query sees; 0 for all.
        kernel: implementation of the attention op. norm_kernel: of the norm of q and k.
        write_kernel: of what norms, rotates and writes at once, where q, k and v are one product
            and are turned; "reference" leaves that to XLA.

    Returns:
        [parts, B, Q, E] f32, whose sum in order is what attention adds, and the pages with the new
        tokens.
    """
    with jax.named_scope("attention"):
        if write_kernel != "reference" and "qkv" in weights and rope is not None:
            q, pages = _rotated_at_once(x, weights, pages, slots, rope, config, write_kernel)
        else:
            q, pages = _rotated_apart(x, weights, pages, slots, rope, config, norm_kernel)
        out = paged_attention(
            q.astype(x.dtype),
            *pages,
            slots.table,
            slots.starts,
            slots.lengths,
            weights.get("sinks"),
            scale=config.attention_scale,
            window=window,
            softcap=config.attention_softcap,
            implementation=kernel,  # type: ignore[arg-type]  # checked by EngineConfig
        )
        return linear_parts(out.reshape(*x.shape[:2], -1), weights["o"]), pages


def _rotated_apart(
    x: jax.Array,
    weights: dict,
    pages: tuple[Pages, Pages],
    slots: PageSlots,
    rope: RopeTable | None,
    config: ModelConfig,
    norm_kernel: str,
) -> tuple[jax.Array, tuple[Pages, Pages]]:
    """Queries [B, Q, H, D], and the pages with new keys and values, in steps for XLA to fuse."""
    q, k, v = _projections(x, weights, config)
    q = _normed_heads(q, weights.get("q_norm"), config.num_heads, config, norm_kernel)
    k = _normed_heads(k, weights.get("k_norm"), config.num_kv_heads, config, norm_kernel)
    v = _heads(v, config.num_kv_heads)
    if rope is not None:
        q, k = apply_rope(q, rope), apply_rope(k, rope)
    return q, (write_kv(pages[0], k, slots), write_kv(pages[1], v, slots))


def _rotated_at_once(
    x: jax.Array,
    weights: dict,
    pages: tuple[Pages, Pages],
    slots: PageSlots,
    rope: RopeTable,
    config: ModelConfig,
    kernel: str,
) -> tuple[jax.Array, tuple[Pages, Pages]]:
    """The same in one kernel."""
    norms = None
    if config.qk_norm:
        norms = HeadNorms(weights["q_norm"], weights["k_norm"])
    parts = linear_parts(x, weights["qkv"])
    q, *written = rotate_write(
        parts.reshape(parts.shape[0], -1, parts.shape[-1]),
        pages[0],  # type: ignore[arg-type]  # plain arrays, where the kernel was chosen
        pages[1],  # type: ignore[arg-type]  # likewise
        rope.cos.reshape(-1, rope.cos.shape[-1]),
        rope.sin.reshape(-1, rope.sin.shape[-1]),
        slots.pages,
        slots.offsets,
        norms,
        num_heads=config.num_heads,
        eps=config.norm_eps,
        implementation=kernel,  # type: ignore[arg-type]  # decided for the engine
    )
    return q.reshape(*x.shape[:2], *q.shape[1:]), (written[0], written[1])


def _projections(x: jax.Array, weights: dict, config: ModelConfig) -> list[jax.Array]:
    """Queries, keys and values, all heads in one axis."""
    if "qkv" not in weights:
        return [linear(x, weights[name]) for name in ("q", "k", "v")]
    queries = config.num_heads * config.head_dim
    ends = (queries, queries + config.num_kv_heads * config.head_dim)
    return jnp.split(linear(x, weights["qkv"]), ends, axis=-1)


def _normed_heads(
    x: jax.Array, scale: jax.Array | None, num_heads: int, config: ModelConfig, kernel: str
) -> jax.Array:
    """Queries or keys a head, normed where the family does."""
    if not config.qk_norm:
        return _heads(x, num_heads)
    assert scale is not None
    if scale.shape == x.shape[-1:]:
        return _heads(rms_norm(x, scale, config.norm_eps, kernel), num_heads)
    return rms_norm(_heads(x, num_heads), scale, config.norm_eps, kernel)


def _heads(x: jax.Array, num_heads: int) -> jax.Array:
    return x.reshape(*x.shape[:-1], num_heads, -1)
