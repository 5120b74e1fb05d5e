"""The op `rms_norm`: one signature, the implementation chosen by `dispatch`."""

from typing import Literal

import jax

from pallas_kernels import dispatch
from pallas_kernels.rms_norm import reference

IMPLEMENTATIONS = {"reference": reference.rms_norm}


def rms_norm(
    x: jax.Array,
    weight: jax.Array,
    *,
    eps: float,
    implementation: Literal["auto", "reference"] = "auto",
) -> jax.Array:
    """x / sqrt(mean(x²) + eps) · weight; see `reference.rms_norm` for shapes."""
    return dispatch.pick("rms_norm", IMPLEMENTATIONS, implementation)(x, weight, eps=eps)
