"""The op `paged_attention`: one signature, the implementation chosen by `dispatch`."""

import functools
from typing import TYPE_CHECKING, Literal

import jax

from pallas_kernels import dispatch, triton_compat
from pallas_kernels.dispatch import Dtypes, Platform, Shapes
from pallas_kernels.paged_attention import reference, row_groups
from pallas_kernels.paged_attention.pages import Pages, code_array

if TYPE_CHECKING:
    from pallas_kernels.paged_attention import mosaic, triton
else:
    mosaic = dispatch.Deferred("pallas_kernels.paged_attention.mosaic")
    triton = dispatch.Deferred("pallas_kernels.paged_attention.triton")

Implementation = Literal["auto", "reference", "row_groups", "mosaic", "triton", "simulated"]


def why_not_mosaic(shapes: Shapes, dtypes: Dtypes, platform: Platform) -> str | None:
    """Why `mosaic` cannot serve a call, or None. Names of shapes: q, k_pages, v_pages."""
    return dispatch.why_not_hopper(platform) or mosaic.why_not(shapes, dtypes, platform)


def _why_not_triton(shapes: Shapes, dtypes: Dtypes, platform: Platform) -> str | None:
    return triton_compat.why_not_triton(platform) or triton.why_not(shapes, dtypes, platform)


IMPLEMENTATIONS: dispatch.Implementations = {
    "reference": reference.paged_attention,
    "row_groups": row_groups.paged_attention,
    "mosaic": mosaic.paged_attention,
    "triton": triton.paged_attention,
    "simulated": functools.partial(mosaic.paged_attention, interpret=True),
}


def paged_attention(
    q: jax.Array,
    k_pages: Pages,
    v_pages: Pages,
    table: jax.Array,
    starts: jax.Array,
    lengths: jax.Array,
    sinks: jax.Array | None = None,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    implementation: Implementation = "auto",
) -> jax.Array:
    """Causal attention through a page table; see `reference.paged_attention` for shapes.

    Args:
        implementation: "auto" is what serves the call best on this process's first device; a
            program for another device names its own. "row_groups" is the reference in the form for
            a CPU. "simulated" is `mosaic` on a CPU: slow.
    """
    arrays = {"q": q, "k_pages": code_array(k_pages), "v_pages": code_array(v_pages)}
    name = resolve_implementation(
        implementation,
        {name: array.shape for name, array in arrays.items()},
        {name: array.dtype for name, array in arrays.items()},
    )
    options = {"scale": scale, "window": window, "softcap": softcap}
    return IMPLEMENTATIONS[name](q, k_pages, v_pages, table, starts, lengths, sinks, **options)


def resolve_implementation(
    wanted: str,
    shapes: Shapes | None = None,
    dtypes: Dtypes | None = None,
    platform: Platform | None = None,
) -> str:
    """The name of the implementation that `wanted` ("auto" or a name) stands for.

    Args:
        shapes: of q, k_pages and v_pages (of their codes, where they are quantized), by name;
            without them "auto" is the reference.
        dtypes: likewise.
        platform: where the program will run; None for this process's first device.

    Raises:
        ValueError: a name that the op does not have, or that cannot serve these arrays there.
    """
    why_not = {}
    if shapes is not None and dtypes is not None:
        reason = functools.partial(why_not_mosaic, shapes, dtypes)
        of_triton = functools.partial(_why_not_triton, shapes, dtypes)
        dispatch.refuse_named("paged_attention", wanted, reason, platform, of_triton)
        where = platform or dispatch.current_platform()
        if wanted == "row_groups":
            dispatch.refuse("paged_attention", wanted, row_groups.why_not(shapes, dtypes, where))
        why_not["mosaic"] = functools.partial(reason, where)
        why_not["triton"] = lambda: triton_compat.why_not_chosen(where) or of_triton(where)
        why_not["row_groups"] = functools.partial(row_groups.why_not, shapes, dtypes, where)
    return dispatch.resolve("paged_attention", IMPLEMENTATIONS, wanted, why_not)
