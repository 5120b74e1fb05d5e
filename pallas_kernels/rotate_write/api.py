"""The op `rotate_write`: one signature, the implementation chosen by `dispatch`."""

import functools
from typing import TYPE_CHECKING, Literal

import jax

from pallas_kernels import dispatch
from pallas_kernels.dispatch import HOPPER, Dtypes, Platform, Shapes
from pallas_kernels.rotate_write import reference
from pallas_kernels.rotate_write.reference import HeadNorms

if TYPE_CHECKING:
    from pallas_kernels.rotate_write import mosaic
else:
    mosaic = dispatch.Deferred("pallas_kernels.rotate_write.mosaic")

Implementation = Literal["auto", "reference", "mosaic", "simulated"]


def why_not_mosaic(
    shapes: Shapes, dtypes: Dtypes, num_heads: int, platform: Platform
) -> str | None:
    """Why the kernel cannot serve a call there, or None; arguments as `resolve_implementation`."""
    if reason := dispatch.why_not_hopper(platform):
        return reason
    return mosaic.why_not(shapes, dtypes, platform, num_heads=num_heads)


IMPLEMENTATIONS: dispatch.Implementations = {
    "reference": reference.rotate_write,
    "mosaic": mosaic.rotate_write,
    "simulated": functools.partial(mosaic.rotate_write, interpret=True),
}


def rotate_write(
    parts: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    cos: jax.Array,
    sin: jax.Array,
    pages: jax.Array,
    offsets: jax.Array,
    norms: HeadNorms | None = None,
    *,
    num_heads: int,
    eps: float = 0.0,
    implementation: Implementation = "auto",
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Queries, and pages with the new keys and values; see `reference.rotate_write` for shapes.

    Args:
        implementation: "auto" is for this process's first device; a program for another device
            names its own. "simulated" is `mosaic` on a CPU: slow.
    """
    name: str = implementation
    if name == "auto":
        arrays = {"cos": cos, "k_pages": k_pages, "v_pages": v_pages}
        shapes = {name: array.shape for name, array in arrays.items()}
        dtypes = {name: array.dtype for name, array in arrays.items()}
        name = resolve_implementation(name, shapes, dtypes, num_heads=num_heads)
    options = {"num_heads": num_heads, "eps": eps}
    run = dispatch.pick("rotate_write", IMPLEMENTATIONS, name)
    return run(parts, k_pages, v_pages, cos, sin, pages, offsets, norms, **options)


def resolve_implementation(
    wanted: str,
    shapes: Shapes,
    dtypes: Dtypes,
    *,
    num_heads: int,
    platform: Platform | None = None,
) -> str:
    """The name of the implementation that `wanted` ("auto" or a name) stands for; where a named one
    cannot serve, the reference.

    Args:
        shapes: of cos, k_pages and v_pages, by name. dtypes: likewise.
        num_heads: H, of queries.
        platform: where the program will run; None for this process's first device.

    Raises:
        ValueError: a name that no op has.
    """
    dispatch.refuse_unknown("rotate_write", IMPLEMENTATIONS, wanted, dispatch.ASKED)
    where = HOPPER if wanted == "simulated" else platform or dispatch.current_platform()
    if wanted not in dispatch.OF_HOPPER or why_not_mosaic(shapes, dtypes, num_heads, where):
        return "reference"
    return "simulated" if wanted == "simulated" else "mosaic"
