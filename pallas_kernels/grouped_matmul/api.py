"""The op `grouped_matmul`: one signature, the implementation chosen by `dispatch`."""

import functools
from typing import TYPE_CHECKING, Literal

import jax

from pallas_kernels import dispatch
from pallas_kernels.dispatch import Dtypes, Platform, Shapes
from pallas_kernels.grouped_matmul import reference

if TYPE_CHECKING:
    from pallas_kernels.grouped_matmul import mosaic
else:
    mosaic = dispatch.Deferred("pallas_kernels.grouped_matmul.mosaic")

Implementation = Literal["auto", "reference", "mosaic", "simulated"]


def why_not_mosaic(shapes: Shapes, dtypes: Dtypes, platform: Platform) -> str | None:
    """Why `mosaic` cannot serve a call, or None. Names of shapes: x, matrices."""
    return dispatch.why_not_hopper(platform) or mosaic.why_not(shapes, dtypes, platform)


IMPLEMENTATIONS: dispatch.Implementations = {
    "reference": reference.grouped_matmul,
    "mosaic": mosaic.grouped_matmul,
    "simulated": functools.partial(mosaic.grouped_matmul, interpret=True),
}


def grouped_matmul(
    x: jax.Array,
    matrices: jax.Array,
    counts: jax.Array,
    *,
    implementation: Implementation = "auto",
) -> jax.Array:
    """x · matrixᵀ of each group; see `reference.grouped_matmul` for shapes.

    Args:
        implementation: "auto" is for this process's first device; a program for another device
            names its own. "simulated" is `mosaic` on a CPU: slow.
    """
    shapes = {"x": x.shape, "matrices": matrices.shape}
    dtypes = {"x": x.dtype, "matrices": matrices.dtype}
    name = resolve_implementation(implementation, shapes, dtypes)
    return IMPLEMENTATIONS[name](x, matrices, counts)


def resolve_implementation(
    wanted: str, shapes: Shapes, dtypes: Dtypes, platform: Platform | None = None
) -> str:
    """The name that `wanted` stands for; names of shapes: x, matrices.

    platform: None for this process's first device.

    Raises:
        ValueError: a name that the op does not have, or that cannot serve these arrays there.
    """
    reason = functools.partial(why_not_mosaic, shapes, dtypes)
    dispatch.refuse_named("grouped_matmul", wanted, reason, platform)
    where = platform or dispatch.current_platform()
    why_not = {"mosaic": functools.partial(reason, where)}
    return dispatch.resolve("grouped_matmul", IMPLEMENTATIONS, wanted, why_not)
