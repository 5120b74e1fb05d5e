"""The op `paged_attention`: one signature, the implementation chosen by `dispatch`."""

from typing import Literal

import jax

from pallas_kernels import dispatch
from pallas_kernels.paged_attention import reference

IMPLEMENTATIONS = {"reference": reference.paged_attention}


def paged_attention(
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    table: jax.Array,
    starts: jax.Array,
    lengths: jax.Array,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    implementation: Literal["auto", "reference"] = "auto",
) -> jax.Array:
    """Causal attention through a page table; see `reference.paged_attention` for shapes."""
    run = dispatch.pick("paged_attention", IMPLEMENTATIONS, implementation)
    return run(
        q,
        k_pages,
        v_pages,
        table,
        starts,
        lengths,
        scale=scale,
        window=window,
        softcap=softcap,
    )


def resolve_implementation(wanted: str) -> str:
    """The name of the implementation that `wanted` ("auto" or a name) stands for here."""
    return dispatch.resolve("paged_attention", IMPLEMENTATIONS, wanted)
