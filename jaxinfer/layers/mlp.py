"""DEV. The gated mlp."""

from collections.abc import Callable

import jax

from jaxinfer.config.model_config import Activation
from jaxinfer.layers.linear import linear
from jaxinfer.layers.weights import LinearWeight


def gated_mlp(
    x: jax.Array,
    weights: dict,
    activation: Activation,
    apply: Callable[[jax.Array, LinearWeight], jax.Array] = linear,
) -> jax.Array:
    """down(activation(gate(x)) · up(x)).

    Args:
        x: [..., E].
        weights: records `gate`, `up` [F, E] and `down` [E, F].
        activation: the gate's nonlinearity.
        apply: how a record is applied; experts have another way.

    Returns:
        [..., E] f32.

    Source: Shazeer 2020, "GLU variants improve transformer", equation 6.
    """
    with jax.named_scope("mlp"):
        gate = activate(apply(x, weights["gate"]), activation)
        return apply((gate * apply(x, weights["up"])).astype(x.dtype), weights["down"])


def activate(x: jax.Array, activation: Activation) -> jax.Array:
    """The nonlinearity, element by element, in x's dtype."""
    if activation == "silu":
        return x * jax.nn.sigmoid(x)
    return jax.nn.gelu(x, approximate=True)
