"""DEV. The gated mlp."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxinfer.config.model_config import Activation, ClampedSwiglu
from jaxinfer.layers.linear import linear
from jaxinfer.layers.weights import LinearWeight


def gated_mlp(
    x: jax.Array,
    weights: dict,
    activation: Activation,
    apply: Callable[[jax.Array, LinearWeight], jax.Array] = linear,
) -> jax.Array:
    """down(activation(gate(x)) · up(x)), or with what else the activation makes of the two.

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
        gate, up = apply(x, weights["gate"]), apply(x, weights["up"])
        return apply(gated(gate, up, activation).astype(x.dtype), weights["down"])


def gated(gate: jax.Array, up: jax.Array, activation: Activation) -> jax.Array:
    """What goes down, element by element."""
    if isinstance(activation, ClampedSwiglu):
        limit = jnp.float32(activation.limit)
        gate, up = jnp.minimum(gate, limit), jnp.clip(up, -limit, limit)
        return gate * jax.nn.sigmoid(gate * jnp.float32(activation.slope)) * (up + jnp.float32(1))
    return activate(gate, activation) * up


def activate(x: jax.Array, activation: Activation) -> jax.Array:
    """The nonlinearity, element by element, in x's dtype."""
    if activation == "silu":
        return x * jax.nn.sigmoid(x)
    return jax.nn.gelu(x, approximate=True)
