"""The op `quant_matmul`: one signature, the implementation chosen by `dispatch`."""

import functools
from typing import Any, Literal

import jax

from pallas_kernels import dispatch
from pallas_kernels.dispatch import Dtypes, Platform, Shapes
from pallas_kernels.quant_matmul import reference

Implementation = Literal["auto", "reference", "mosaic", "simulated"]


def _mosaic(*arrays: Any, **options: Any) -> jax.Array:
    # Imported at the first use: a CPU that only runs the reference does not wait for it.
    from pallas_kernels.quant_matmul import mosaic

    return mosaic.quant_matmul(*arrays, **options)


def _stacked_mosaic(*arrays: Any, **options: Any) -> jax.Array:
    from pallas_kernels.quant_matmul import mosaic

    return mosaic.stacked_quant_matmul(*arrays, **options)


def _why_not_mosaic(shapes: Shapes, dtypes: Dtypes, group: int, platform: Platform) -> str | None:
    if reason := dispatch.why_not_hopper(platform):
        return reason
    from pallas_kernels.quant_matmul import mosaic

    return mosaic.why_not(shapes, dtypes, platform, group=group)


IMPLEMENTATIONS = {
    "reference": reference.quant_matmul,
    "mosaic": _mosaic,
    "simulated": functools.partial(_mosaic, interpret=True),
}
STACKED_IMPLEMENTATIONS = {
    "reference": reference.stacked_quant_matmul,
    "mosaic": _stacked_mosaic,
    "simulated": functools.partial(_stacked_mosaic, interpret=True),
}


def quant_matmul(
    x: jax.Array,
    codes: jax.Array,
    scales: jax.Array,
    zeros: jax.Array | None = None,
    offsets: jax.Array | None = None,
    *,
    group: int,
    out_group: int = 1,
    implementation: Implementation = "auto",
) -> jax.Array:
    """x · Wᵀ in float32, W kept as codes; see `reference.quant_matmul` for shapes.

    Args:
        implementation: "auto" is what serves the call best on this process's first device; a
            program for another device names its own. "simulated" is `mosaic` on a CPU: slow.
    """
    shapes, dtypes = {"x": x.shape, "codes": codes.shape}, {"x": x.dtype, "codes": codes.dtype}
    name = resolve_implementation(implementation, shapes, dtypes, group=group)
    options = {"group": group, "out_group": out_group}
    return IMPLEMENTATIONS[name](x, codes, scales, zeros, offsets, **options)


def stacked_quant_matmul(
    x: jax.Array,
    codes: jax.Array,
    scales: jax.Array,
    counts: jax.Array,
    zeros: jax.Array | None = None,
    offsets: jax.Array | None = None,
    *,
    group: int,
    out_group: int = 1,
    implementation: Implementation = "auto",
) -> jax.Array:
    """x · Wᵀ of each matrix of a stack with its own rows; see `reference.stacked_quant_matmul`.

    Args:
        implementation: as for `quant_matmul`.
    """
    shapes = {"x": x.shape[1:], "codes": codes.shape[1:]}
    dtypes = {"x": x.dtype, "codes": codes.dtype}
    name = resolve_implementation(implementation, shapes, dtypes, group=group)
    run = STACKED_IMPLEMENTATIONS[name]
    return run(x, codes, scales, counts, zeros, offsets, group=group, out_group=out_group)


def resolve_implementation(
    wanted: str,
    shapes: Shapes,
    dtypes: Dtypes,
    *,
    group: int,
    platform: Platform | None = None,
) -> str:
    """The name of the implementation that `wanted` ("auto" or a name) stands for.

    Args:
        shapes: of x and codes, by name; of one matrix of a stack. dtypes: likewise. group: columns
            under one scale.
        platform: where the program will run; None for this process's first device.

    Raises:
        ValueError: a name that the op does not have, or that cannot serve these arrays there.
    """
    reason = functools.partial(_why_not_mosaic, shapes, dtypes, group)
    dispatch.refuse_named("quant_matmul", wanted, reason, platform)
    where = platform or dispatch.current_platform()
    is_better = {"mosaic": functools.partial(reason, where)}
    return dispatch.resolve("quant_matmul", IMPLEMENTATIONS, wanted, is_better)
