"""Keeps a product's rounding where it is.

LLVM contracts `a * b + c` into one fused multiply-add, with one rounding instead of two, where both
land in the same fusion. Whether they do can depend on the shapes, and then the bits do, too.
"""

import jax
from jax import lax


def rounded(product: jax.Array) -> jax.Array:
    """The same values, as an array of its own that no later addition is fused with."""
    return lax.optimization_barrier(product)
