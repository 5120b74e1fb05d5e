"""Keeps a product's rounding where it is.

LLVM contracts `a * b + c` into one fused multiply-add, with one rounding instead of two, where both
land in the same fusion. Whether they do can depend on the shapes, and then the bits do, too. An
optimization barrier does not help: XLA's CPU pipeline removes it before it fuses.
"""

import jax
import jax.numpy as jnp


def rounded(product: jax.Array) -> jax.Array:
    """The same values, in a form with which no later addition is contracted.

    The choice between a value and NaN by "is it NaN" changes nothing, but a compiler that keeps
    NaNs may not remove it, and the addition no longer sees a product.

    Cost: a comparison and a blend a value, in registers.
    """
    return jnp.where(product == product, product, jnp.asarray(jnp.nan, product.dtype))
