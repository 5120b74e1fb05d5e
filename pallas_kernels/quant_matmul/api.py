"""The op `quant_matmul`: one signature, the implementation chosen by `dispatch`.

Its kernel sums a product in parts; who adds something to it anyway takes the parts.
"""

import functools
from typing import TYPE_CHECKING, Any, Literal

import jax

from pallas_kernels import dispatch, triton_compat
from pallas_kernels.dispatch import HOPPER, Dtypes, Platform, Shapes
from pallas_kernels.quant_matmul import reference, xla
from pallas_kernels.row_matmul import row_matmul

if TYPE_CHECKING:
    from pallas_kernels.quant_matmul import mosaic, triton
else:
    mosaic = dispatch.Deferred("pallas_kernels.quant_matmul.mosaic")
    triton = dispatch.Deferred("pallas_kernels.quant_matmul.triton")

MAX_PLAIN_ROWS = 128  # of one tile

Implementation = Literal["auto", "reference", "mosaic", "triton", "simulated"]


def _why_not_triton(shapes: Shapes, dtypes: Dtypes, group: int, platform: Platform) -> str | None:
    if reason := triton_compat.why_not_triton(platform):
        return reason
    return triton.why_not(shapes, dtypes, platform, group=group)


def why_not_coded(
    shapes: Shapes, dtypes: Dtypes, platform: Platform, *, group: int, out_group: int
) -> str | None:
    """Why the kernel of `coded_matmul_parts` cannot serve a call there, or None."""
    if reason := dispatch.why_not_hopper(platform):
        return reason
    return mosaic.why_not_coded(shapes, dtypes, platform, group=group, out_group=out_group)


def why_not_plain(shapes: Shapes, dtypes: Dtypes, platform: Platform) -> str | None:
    """Why the kernel of `plain_matmul_parts` cannot serve a call there, or None."""
    if reason := dispatch.why_not_hopper(platform):
        return reason
    return mosaic.why_not_plain(shapes, dtypes, platform)


def _why_not_mosaic(shapes: Shapes, dtypes: Dtypes, group: int, platform: Platform) -> str | None:
    if reason := dispatch.why_not_hopper(platform):
        return reason
    return mosaic.why_not(shapes, dtypes, platform, group=group)


def why_not(shapes: Shapes, dtypes: Dtypes, *, group: int, platform: Platform) -> str | None:
    """Why no kernel serves a call there, or None: the reason of the one written for such a GPU."""
    if platform.kind == "gpu" and platform.compute_capability < HOPPER.compute_capability:
        return _why_not_triton(shapes, dtypes, group, platform)
    return _why_not_mosaic(shapes, dtypes, group, platform)


IMPLEMENTATIONS: dispatch.Implementations = {
    "reference": reference.quant_matmul,
    "mosaic": mosaic.quant_matmul,
    "triton": triton.quant_matmul,
    "simulated": functools.partial(mosaic.quant_matmul, interpret=True),
}
STACKED_IMPLEMENTATIONS: dispatch.Implementations = {
    "reference": reference.stacked_quant_matmul,
    "mosaic": mosaic.stacked_quant_matmul,
    "simulated": functools.partial(mosaic.stacked_quant_matmul, interpret=True),
}
IN_PARTS: dispatch.Implementations = {
    "reference": lambda *arrays, **options: reference.quant_matmul(*arrays, **options)[None],
    "mosaic": mosaic.quant_matmul_parts,
    "triton": lambda *arrays, **options: triton.quant_matmul(*arrays, **options)[None],
    "simulated": functools.partial(mosaic.quant_matmul_parts, interpret=True),
}
PLAIN_IN_PARTS: dispatch.Implementations = {
    "reference": lambda x, matrix: row_matmul(x, matrix)[None],
    "mosaic": mosaic.plain_matmul_parts,
    "simulated": functools.partial(mosaic.plain_matmul_parts, interpret=True),
}
CODED_IN_PARTS: dispatch.Implementations = {
    "reference": lambda *arrays, **options: reference.coded_matmul(*arrays, **options)[None],
    "xla": lambda *arrays, **options: xla.coded_matmul(*arrays, **options)[None],
    "mosaic": mosaic.coded_matmul_parts,
    "simulated": functools.partial(mosaic.coded_matmul_parts, interpret=True),
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
    name = _resolve(implementation, x, codes, group)
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


def quant_matmul_parts(
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
    """[parts, ..., out] f32: arrays whose sum, in order, is `quant_matmul`."""
    name = _resolve(implementation, x, codes, group)
    options = {"group": group, "out_group": out_group}
    return IN_PARTS[name](x, codes, scales, zeros, offsets, **options)


def plain_matmul_parts(
    x: jax.Array, matrix: jax.Array, *, implementation: Implementation
) -> jax.Array:
    """[parts, ..., out] f32: arrays whose sum, in order, is `row_matmul`.

    "mosaic" streams the matrix once past few rows, in splits that depend on the matrix alone; more
    than `MAX_PLAIN_ROWS`, where arithmetic is the bound, are XLA's.
    """
    rows = x.size // x.shape[-1]
    name: str = implementation
    if name == "auto":
        dtypes = {"x": matrix.dtype, "matrix": matrix.dtype}
        name = resolve_plain(name, _shapes(x=x, matrix=matrix), dtypes)
    name = dispatch.resolve("plain_matmul_parts", PLAIN_IN_PARTS, name)
    name = name if rows <= MAX_PLAIN_ROWS else "reference"
    return PLAIN_IN_PARTS[name](x.astype(matrix.dtype), matrix)


def coded_matmul_parts(
    x: jax.Array,
    x_scales: jax.Array,
    codes: jax.Array,
    scales: jax.Array,
    *,
    group: int,
    out_group: int = 1,
    implementation: Implementation,
) -> jax.Array:
    """[parts, ..., out] f32, whose sum, in order, is `reference.coded_matmul`.

    "mosaic" is for few rows; more than `MAX_PLAIN_ROWS` are XLA's where it serves the matrix, too.
    """
    options: dict[str, Any] = {"group": group, "out_group": out_group}
    name: str = implementation
    if name == "auto":
        dtypes = {"x": x.dtype, "codes": codes.dtype}
        name = resolve_coded(name, _shapes(x=x, codes=codes), dtypes, **options)
    name = dispatch.resolve("coded_matmul_parts", CODED_IN_PARTS, name)
    is_whole_row = group >= x.shape[-1] and out_group == 1
    if name == "mosaic" and is_whole_row and x.size // x.shape[-1] > MAX_PLAIN_ROWS:
        name = "xla"
    return CODED_IN_PARTS[name](x, x_scales, codes, scales, **options)


def resolve_coded(
    wanted: str,
    shapes: Shapes,
    dtypes: Dtypes,
    *,
    group: int,
    out_group: int,
    platform: Platform | None = None,
) -> str:
    """The implementation of `coded_matmul_parts`; where a named one cannot serve, the reference.

    Args:
        shapes, dtypes: of x and codes, by name. group, out_group: codes under one scale.
        platform: where the program will run; None for this process's first device.

    Raises:
        ValueError: a name that no op has.
    """
    dispatch.refuse_unknown("coded_matmul_parts", CODED_IN_PARTS, wanted, dispatch.ASKED)
    where = HOPPER if wanted == "simulated" else platform or dispatch.current_platform()
    options = {"group": group, "out_group": out_group}
    if wanted == "reference":
        return "reference"
    if wanted in dispatch.OF_HOPPER and not why_not_coded(shapes, dtypes, where, **options):
        return "simulated" if wanted == "simulated" else "mosaic"
    return "reference" if xla.why_not_coded(shapes, dtypes, where, **options) else "xla"


def _resolve(wanted: str, x: jax.Array, codes: jax.Array, group: int) -> str:
    dtypes = {"x": x.dtype, "codes": codes.dtype}
    return resolve_implementation(wanted, _shapes(x=x, codes=codes), dtypes, group=group)


def _shapes(**arrays: jax.Array) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in arrays.items()}


def resolve_plain(
    wanted: str, shapes: Shapes, dtypes: Dtypes, platform: Platform | None = None
) -> str:
    """The implementation of `plain_matmul_parts`; where a named one cannot serve, the reference.

    Args:
        shapes: of x and matrix, by name. dtypes: likewise.
        platform: where the program will run; None for this process's first device.

    Raises:
        ValueError: a name that no op has.
    """
    dispatch.refuse_unknown("plain_matmul_parts", PLAIN_IN_PARTS, wanted, dispatch.ASKED)
    where = HOPPER if wanted == "simulated" else platform or dispatch.current_platform()
    if wanted not in dispatch.OF_HOPPER or why_not_plain(shapes, dtypes, where):
        return "reference"
    return "simulated" if wanted == "simulated" else "mosaic"


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
    of_triton = functools.partial(_why_not_triton, shapes, dtypes, group)
    dispatch.refuse_named("quant_matmul", wanted, reason, platform, of_triton)
    where = platform or dispatch.current_platform()
    is_better = {
        "mosaic": functools.partial(reason, where),
        "triton": lambda: triton_compat.why_not_chosen(where) or of_triton(where),
    }
    return dispatch.resolve("quant_matmul", IMPLEMENTATIONS, wanted, is_better)
