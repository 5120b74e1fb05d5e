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
    """down(`gated_rows`): the gated mlp whole.

    Args:
        x: [..., E].
        weights: as for `gated_rows`, and `down` [E, F].
        activation: the gate's nonlinearity.
        apply: how a record is applied; experts have another way.

    Returns:
        [..., E] f32.

    Source: Shazeer 2020, "GLU variants improve transformer", equation 6.
    """
    return apply(gated_rows(x, weights, activation, apply), weights["down"])


def gated_rows(
    x: jax.Array,
    weights: dict,
    activation: Activation,
    apply: Callable[[jax.Array, LinearWeight], jax.Array] = linear,
) -> jax.Array:
    """activation(gate(x)) · up(x), or what else the activation makes of the two: what `down`
    multiplies.

    Args:
        x: [..., E].
        weights: records `gate` and `up` [F, E]; or both in one, `gate_up` [2·F, E].

    Returns:
        [..., F] of x's dtype.
    """
    with jax.named_scope("mlp"):
        if "gate_up" in weights:
            gate, up = jnp.split(apply(x, weights["gate_up"]), 2, axis=-1)
        else:
            gate, up = apply(x, weights["gate"]), apply(x, weights["up"])
        return gated(gate, up, activation).astype(x.dtype)


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
