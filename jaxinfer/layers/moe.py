"""DEV. The mixture of experts: a router chooses, each expert works on the rows that are its own.

Holds the router and the sum; how the rows get to the experts is `expert_tiles` (CPU) and
`expert_rounds` (GPU). In both a row's bits do not depend on what else is in the step.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from jaxinfer.config.expert_config import ExpertConfig
from jaxinfer.config.model_config import Activation
from jaxinfer.layers.expert_rounds import run_in_rounds
from jaxinfer.layers.expert_tiles import run_in_tiles
from jaxinfer.layers.linear import linear
from jaxinfer.layers.mlp import gated_mlp
from pallas_kernels.folded_sum import folded_sum
from pallas_kernels.rounding import rounded


def moe(
    x: jax.Array,
    weights: dict,
    is_real: jax.Array,
    *,
    experts: ExpertConfig,
    activation: Activation,
    kernel: str,
) -> jax.Array:
    """The shares of the chosen experts times what they make of each row, added up.

    Args:
        x: [B, Q, E] – the normed input.
        weights: record `router` [X, E], and `experts`: records `gate`, `up` and `down` with a
            leading axis of experts on every array; bfloat16 ones hold their bits as u16.
        is_real: [B, Q] – padding chooses no expert and gives zeros.
        kernel: "tiles", or the implementation of `grouped_matmul` with which rounds run.

    Returns:
        [B, Q, E] f32.

    Source: Shazeer et al. 2017, "Outrageously large neural networks", equation 1.
    Cost: at least 6·rows·chosen·E·F FLOPs and the chosen experts read once.
    """
    with jax.named_scope("moe"):
        rows = x.reshape(-1, x.shape[-1])
        scores = linear(rows.astype(jnp.float32), weights["router"])
        chosen, shares = choose_experts(scores, experts)
        chosen = jnp.where(is_real.reshape(-1, 1), chosen, experts.num_experts)
        shares = jnp.where(is_real.reshape(-1, 1), shares, jnp.float32(0))
        mlp = functools.partial(gated_mlp, activation=activation)
        arrays, count = (rows, weights["experts"], chosen), experts.num_experts
        if kernel == "tiles":
            made = run_in_tiles(*arrays, mlp=mlp, num_experts=count)
        else:
            made = run_in_rounds(*arrays, mlp=mlp, num_experts=count, kernel=kernel)
        return _add_shares(made, shares).reshape(x.shape)


def choose_experts(scores: jax.Array, experts: ExpertConfig) -> tuple[jax.Array, jax.Array]:
    """The chosen experts of each row, best first, and their shares.

    Args:
        scores: [rows, X] f32.

    Returns:
        [rows, chosen] i32 and [rows, chosen] f32.
    """
    best, chosen = lax.top_k(scores, experts.num_chosen)
    exponents = jnp.exp(best - best[:, :1])
    every = exponents if experts.renormalizes else jnp.exp(scores - best[:, :1])
    return chosen, exponents / folded_sum(every)


def _add_shares(made: jax.Array, shares: jax.Array) -> jax.Array:
    """[rows, E]: the experts' outputs by share, added in the order of the choices."""
    total = jnp.zeros((made.shape[0], made.shape[2]), jnp.float32)
    for choice in range(made.shape[1]):
        total = total + rounded(made[:, choice] * shares[:, choice, None])
    return total
