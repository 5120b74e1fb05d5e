"""Products of codes with codes as XLA's own matrix product: one scale a row and one an output."""

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.dispatch import Dtypes, Platform, Shapes

# The first GPUs that multiply such codes.
_LEAST_CAPABILITY = {"int8": (8, 0), "float8_e4m3fn": (8, 9)}


def why_not_coded(
    shapes: Shapes, dtypes: Dtypes, platform: Platform, *, group: int, out_group: int
) -> str | None:
    """Why this implementation cannot serve a call, or None. Names: x, codes."""
    kind = str(jnp.dtype(dtypes["codes"]))
    if platform.kind != "gpu":
        return f"it is for GPUs, this is a {platform.kind}"
    if kind not in _LEAST_CAPABILITY:
        return f"codes are {kind}; it takes {' and '.join(_LEAST_CAPABILITY)}"
    if platform.compute_capability < _LEAST_CAPABILITY[kind]:
        found = ".".join(map(str, platform.compute_capability))
        return f"this GPU (compute capability {found}) has no products of {kind}"
    if group < shapes["x"][-1] or out_group > 1:
        return f"scales are of {out_group} by {group} codes; it takes one an output"
    return None


def coded_matmul(
    x: jax.Array,
    x_scales: jax.Array,
    codes: jax.Array,
    scales: jax.Array,
    *,
    group: int,
    out_group: int = 1,
) -> jax.Array:
    """See `reference.coded_matmul`."""
    is_integer = codes.dtype == jnp.int8
    rows = x.reshape(-1, x.shape[-1])
    product = lax.dot_general(
        rows,
        codes,
        (((1,), (1,)), ((), ())),
        preferred_element_type=jnp.int32 if is_integer else jnp.float32,
    )
    of_rows = x_scales.reshape(-1, 1)
    out = product.astype(jnp.float32) * of_rows * scales[:1].astype(jnp.float32)
    return out.reshape(*x.shape[:-1], codes.shape[0])
