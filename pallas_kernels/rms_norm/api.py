"""The op `rms_norm` and its form with a residual: the implementation chosen by `dispatch`.

"auto" is `xla` on a GPU and the reference elsewhere. `mosaic` has to be asked for: inside a model
XLA fuses the norm with what stands before and after, which a kernel of its own prevents. With a
residual it is the other way round: one kernel adds, keeps and norms, of which XLA makes two or
three; there "auto" is `mosaic` where it serves.
"""

import functools
from typing import TYPE_CHECKING, Any, Literal

import jax

from pallas_kernels import dispatch, triton_compat
from pallas_kernels.dispatch import Platform
from pallas_kernels.rms_norm import reference, xla
from pallas_kernels.rms_norm.reference import add_normed

if TYPE_CHECKING:
    from pallas_kernels.rms_norm import mosaic, triton
else:
    mosaic = dispatch.Deferred("pallas_kernels.rms_norm.mosaic")
    triton = dispatch.Deferred("pallas_kernels.rms_norm.triton")

Implementation = Literal["auto", "reference", "xla", "mosaic", "triton", "simulated"]


def _why_not_mosaic(columns: int, dtype: Any, platform: Platform) -> str | None:
    if reason := dispatch.why_not_hopper(platform):
        return reason
    return mosaic.why_not({"x": (1, columns)}, {"x": dtype}, platform)


def _why_not_triton(columns: int, dtype: Any, platform: Platform) -> str | None:
    if reason := triton_compat.why_not_triton(platform):
        return reason
    return triton.why_not({"x": (1, columns)}, {"x": dtype}, platform)


IMPLEMENTATIONS: dispatch.Implementations = {
    "reference": reference.rms_norm,
    "xla": xla.rms_norm,
    "mosaic": mosaic.rms_norm,
    "triton": triton.rms_norm,
    "simulated": functools.partial(mosaic.rms_norm, interpret=True),
}
WITH_RESIDUAL: dispatch.Implementations = {
    "reference": reference.add_rms_norm,
    "xla": xla.add_rms_norm,
    "mosaic": mosaic.add_rms_norm,
    "triton": functools.partial(add_normed, triton.rms_norm),
    "simulated": functools.partial(mosaic.add_rms_norm, interpret=True),
}


def rms_norm(
    x: jax.Array, weight: jax.Array, *, eps: float, implementation: Implementation = "auto"
) -> jax.Array:
    """x / sqrt(mean(x²) + eps) · weight; see `reference.rms_norm` for shapes.

    Args:
        implementation: "auto" is for this process's first device; a program for another device
            names its own. "simulated" is `mosaic` on a CPU: slow.
    """
    return IMPLEMENTATIONS[resolve_implementation(implementation)](x, weight, eps=eps)


def add_rms_norm(
    x: jax.Array,
    parts: jax.Array,
    weight: jax.Array,
    addend_weight: jax.Array | None = None,
    *,
    eps: float,
    implementation: Implementation = "auto",
) -> tuple[jax.Array, jax.Array]:
    """x + the sum of the parts, and its norm; see `reference.add_rms_norm` for shapes."""
    name = resolve_residual(implementation, None, x.shape[-1], x.dtype)
    return WITH_RESIDUAL[name](x, parts, weight, addend_weight, eps=eps)


def resolve_residual(wanted: str, platform: Platform | None, columns: int, dtype: Any) -> str:
    """The implementation of `add_rms_norm` that `wanted` stands for.

    Args:
        platform: where the program will run; None for this process's first device.
        columns: E; dtype: of x.

    Raises:
        ValueError: a name that the op does not have, or that cannot serve such rows there.
    """
    name = resolve_implementation(wanted, platform, (columns,), dtype)
    where = platform or dispatch.current_platform()
    is_free = wanted == "auto" and not _why_not_mosaic(columns, dtype, where)
    return "mosaic" if is_free else name


def resolve_implementation(
    wanted: str, platform: Platform | None = None, columns: tuple[int, ...] = (), dtype: Any = None
) -> str:
    """The name that `wanted` stands for; platform: None for this process's first device.

    Args:
        columns: lengths of the rows that will be normed, and their dtype: a named implementation
            must take them.

    Raises:
        ValueError: a name that the op does not have, or that cannot serve such rows there.
    """
    for length in columns:
        reason = functools.partial(_why_not_mosaic, length, dtype)
        of_triton = functools.partial(_why_not_triton, length, dtype)
        dispatch.refuse_named("rms_norm", wanted, reason, platform, of_triton)
    where = platform or dispatch.current_platform() if wanted == "auto" else None
    is_better = {"xla": lambda: None if where and where.kind == "gpu" else "for GPUs"}
    return dispatch.resolve("rms_norm", IMPLEMENTATIONS, wanted, is_better)
