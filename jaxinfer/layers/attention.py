"""DEV. Attention over the paged cache: project, rotate, write pages, attend, project back."""

import jax

from jaxinfer.cache import PageSlots, write_kv
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.layers.linear import linear
from jaxinfer.layers.norm import rms_norm
from jaxinfer.layers.rope import RopeTable, apply_rope
from pallas_kernels.paged_attention import paged_attention


def paged_self_attention(
    x: jax.Array,
    weights: dict,
    pages: tuple[jax.Array, jax.Array],
    slots: PageSlots,
    rope: RopeTable,
    *,
    config: ModelConfig,
    window: int,
    kernel: str,
    norm_kernel: str,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """One layer's attention; new keys and values go to the pages first, then pages are read.

    Args:
        x: [B, Q, E] – the normed input.
        weights: records q, k, v, o and, with `config.qk_norm`, scales q_norm and k_norm [D].
        pages: the layer's key and value pages, each [P, K, S, D].
        slots: where each token is written and which pages each row reads.
        rope: the rotation of each token.
        window: tokens a query sees; 0 for all.
        kernel: implementation of the attention op. norm_kernel: of the norm of q and k.

    Returns:
        [B, Q, E] f32, and the pages with the new tokens.
    """
    with jax.named_scope("attention"):
        q = _heads(linear(x, weights["q"]), config.num_heads)
        k = _heads(linear(x, weights["k"]), config.num_kv_heads)
        v = _heads(linear(x, weights["v"]), config.num_kv_heads)
        if config.qk_norm:
            q = rms_norm(q, weights["q_norm"], config.norm_eps, norm_kernel)
            k = rms_norm(k, weights["k_norm"], config.norm_eps, norm_kernel)
        q, k = apply_rope(q, rope), apply_rope(k, rope)
        pages = (write_kv(pages[0], k, slots), write_kv(pages[1], v, slots))
        out = paged_attention(
            q.astype(x.dtype),
            *pages,
            slots.table,
            slots.starts,
            slots.lengths,
            scale=config.attention_scale,
            window=window,
            softcap=config.attention_softcap,
            implementation=kernel,  # type: ignore[arg-type]  # checked by EngineConfig
        )
        return linear(out.reshape(*x.shape[:2], -1), weights["o"]), pages


def _heads(x: jax.Array, num_heads: int) -> jax.Array:
    return x.reshape(*x.shape[:-1], num_heads, -1)
