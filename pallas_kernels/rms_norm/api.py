"""The op `rms_norm` and its form with a residual: the implementation chosen by `dispatch`.

"auto" is the reference on every platform: inside a model XLA fuses it with what stands before and
after, which a kernel of its own prevents. `mosaic` has to be asked for.
"""

import functools
from typing import Literal

import jax

from pallas_kernels import dispatch
from pallas_kernels.rms_norm import mosaic, reference

Implementation = Literal["auto", "reference", "mosaic", "simulated"]

IMPLEMENTATIONS = {
    "reference": reference.rms_norm,
    "mosaic": mosaic.rms_norm,
    "simulated": functools.partial(mosaic.rms_norm, interpret=True),
}
WITH_RESIDUAL = {
    "reference": reference.add_rms_norm,
    "mosaic": mosaic.add_rms_norm,
    "simulated": functools.partial(mosaic.add_rms_norm, interpret=True),
}


def rms_norm(
    x: jax.Array, weight: jax.Array, *, eps: float, implementation: Implementation = "auto"
) -> jax.Array:
    """x / sqrt(mean(x²) + eps) · weight; see `reference.rms_norm` for shapes."""
    return dispatch.pick("rms_norm", IMPLEMENTATIONS, implementation)(x, weight, eps=eps)


def add_rms_norm(
    x: jax.Array,
    addend: jax.Array,
    weight: jax.Array,
    *,
    eps: float,
    implementation: Implementation = "auto",
) -> tuple[jax.Array, jax.Array]:
    """The sum x + addend and its norm; see `reference.add_rms_norm` for shapes."""
    run = dispatch.pick("add_rms_norm", WITH_RESIDUAL, implementation)
    return run(x, addend, weight, eps=eps)
