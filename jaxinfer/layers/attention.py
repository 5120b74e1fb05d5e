"""DEV. Attention over the paged cache: project, rotate, write pages, attend, project back."""

import jax

from jaxinfer.cache import PageSlots, write_kv
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.layers.linear import linear
from jaxinfer.layers.norm import rms_norm
from jaxinfer.layers.rope import RopeTable, apply_rope
from pallas_kernels.paged_attention import Pages, paged_attention


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
) -> tuple[jax.Array, tuple[Pages, Pages]]:
    """One layer's attention; new keys and values go to the pages first, then pages are read.

    Args:
        x: [B, Q, E] – the normed input.
        weights: records q, k, v, o and, with `config.qk_norm`, scales q_norm and k_norm, [D] to
            norm each head or [H·D] and [K·D] to norm all heads together; `sinks` [H] f32 where the
            family has them.
        pages: the layer's key and value pages, each [P, K, S, D] or codes with their scales.
        slots: where each token is written and which pages each row reads.
        rope: the rotation of each token; None where nothing is turned.
        window: tokens a query sees; 0 for all.
        kernel: implementation of the attention op. norm_kernel: of the norm of q and k.

    Returns:
        [B, Q, E] f32, and the pages with the new tokens.
    """
    with jax.named_scope("attention"):
        q = _normed_heads(x, weights, "q", config.num_heads, config, norm_kernel)
        k = _normed_heads(x, weights, "k", config.num_kv_heads, config, norm_kernel)
        v = _heads(linear(x, weights["v"]), config.num_kv_heads)
        if rope is not None:
            q, k = apply_rope(q, rope), apply_rope(k, rope)
        pages = (write_kv(pages[0], k, slots), write_kv(pages[1], v, slots))
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
        return linear(out.reshape(*x.shape[:2], -1), weights["o"]), pages


def _normed_heads(
    x: jax.Array, weights: dict, name: str, num_heads: int, config: ModelConfig, kernel: str
) -> jax.Array:
    """Queries or keys a head, normed where the family does."""
    out = linear(x, weights[name])
    if not config.qk_norm:
        return _heads(out, num_heads)
    scale = weights[f"{name}_norm"]
    if scale.shape == out.shape[-1:]:
        return _heads(rms_norm(out, scale, config.norm_eps, kernel), num_heads)
    return rms_norm(_heads(out, num_heads), scale, config.norm_eps, kernel)


def _heads(x: jax.Array, num_heads: int) -> jax.Array:
    return x.reshape(*x.shape[:-1], num_heads, -1)
