"""DEV. Which implementation of `quant_matmul` multiplies with each packed matrix.

Settled once for a device, from shapes; knows no file and no engine.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from jaxinfer.layers.weights import GroupedWeight
from pallas_kernels.dispatch import Platform
from pallas_kernels.quant_matmul import resolve_implementation


def with_kernels(
    params: Any, wanted: str, activation_dtype: str, platform: Platform | None = None
) -> Any:
    """The parameters (arrays or shapes), every packed matrix with its implementation's name.

    Args:
        wanted: "auto" or a name of the op's implementations.
        activation_dtype: of the rows that are multiplied.
        platform: where the program will run; None for this process's first device.

    Raises:
        ValueError: the named implementation cannot serve one of the matrices.
    """

    def named(leaf: Any) -> Any:
        if not isinstance(leaf, GroupedWeight):
            return leaf
        outputs, width = leaf.codes.shape[-2:]  # of one, where it is a stack of experts
        columns = 2 * width if leaf.codes.dtype == jnp.uint8 else width
        name = resolve_implementation(
            wanted,
            {"x": (1, columns), "codes": (outputs, width)},
            {"x": activation_dtype, "codes": leaf.codes.dtype},
            group=leaf.group,
            platform=platform,
        )
        return replace(leaf, kernel=name)

    return jax.tree.map(named, params, is_leaf=lambda leaf: isinstance(leaf, GroupedWeight))
