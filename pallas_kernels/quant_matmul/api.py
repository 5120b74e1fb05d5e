"""The op `quant_matmul`: one signature, the implementation chosen by `dispatch`."""

from typing import Literal

import jax

from pallas_kernels import dispatch
from pallas_kernels.quant_matmul import reference

IMPLEMENTATIONS = {"reference": reference.quant_matmul}


def quant_matmul(
    x: jax.Array,
    codes: jax.Array,
    scales: jax.Array,
    zeros: jax.Array | None = None,
    offsets: jax.Array | None = None,
    *,
    group: int,
    out_group: int = 1,
    implementation: Literal["auto", "reference"] = "auto",
) -> jax.Array:
    """x · Wᵀ in float32, W kept as codes; see `reference.quant_matmul` for shapes."""
    return dispatch.pick("quant_matmul", IMPLEMENTATIONS, implementation)(
        x, codes, scales, zeros, offsets, group=group, out_group=out_group
    )
