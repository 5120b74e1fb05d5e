"""DEV. The mixture of experts: a router chooses, each expert works on the rows that are its own.

Every expert has a fixed number of places. All experts' places are filled with rows and go through
one batched product, which reads each stack where it lies; rows for which there was no place wait
for the next round. So a row's bits do not depend on what else is in the step: how many rounds there
are does, and in which of them a row is.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from jaxinfer.config.expert_config import ExpertConfig
from jaxinfer.config.model_config import Activation
from jaxinfer.layers.linear import linear
from jaxinfer.layers.mlp import gated_mlp
from pallas_kernels.folded_sum import folded_sum
from pallas_kernels.rounding import rounded

# Fewer places save nothing: the product takes the time in which the stack is read.
_MIN_PLACES = 16


@struct.dataclass
class Seating:
    """Which row has which place of which expert, round after round."""

    rows: jax.Array  # [rounds, X, places] i32, row of x; padding holds any row
    rounds: jax.Array  # [rows, chosen] i32, round of each choice; past the last for none
    places: jax.Array  # [rows, chosen] i32, its place among the X · places of that round
    num_rounds: jax.Array  # [] i32, rounds that hold anything


def moe(
    x: jax.Array,
    weights: dict,
    is_real: jax.Array,
    *,
    experts: ExpertConfig,
    activation: Activation,
) -> jax.Array:
    """The shares of the chosen experts times what they make of each row, added up.

    Args:
        x: [B, Q, E] – the normed input.
        weights: record `router` [X, E], and `experts`: records `gate`, `up` and `down` with a
            leading axis of experts on every array.
        is_real: [B, Q] – padding chooses no expert and gives zeros.

    Returns:
        [B, Q, E] f32.

    Source: Shazeer et al. 2017, "Outrageously large neural networks", equation 1.
    Cost: 6·X·places·E·F FLOPs and all stacks read once, a round.
    """
    with jax.named_scope("moe"):
        rows = x.reshape(-1, x.shape[-1])
        scores = linear(rows.astype(jnp.float32), weights["router"])
        chosen, shares = choose_experts(scores, experts)
        chosen = jnp.where(is_real.reshape(-1, 1), chosen, experts.num_experts)
        shares = jnp.where(is_real.reshape(-1, 1), shares, jnp.float32(0))
        places = places_of_expert(*chosen.shape, experts.num_experts)
        seating = seat_rows(chosen, experts.num_experts, places)
        run = jax.vmap(functools.partial(gated_mlp, activation=activation))
        made = _run_rounds(rows, seating, lambda seated: run(seated, weights["experts"]))
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


def places_of_expert(num_rows: int, num_chosen: int, num_experts: int) -> int:
    """Places of an expert in a round: twice as many as there are rows for each on average.

    With as many places as there are rows nothing ever waits, and there is no loop.
    """
    share = -(-2 * num_rows * num_chosen // num_experts)
    return min(num_rows, max(_MIN_PLACES, 1 << max(share - 1, 0).bit_length()))


def seat_rows(chosen: jax.Array, num_experts: int, num_places: int) -> Seating:
    """A place for every choice, those of an expert in the order of the rows.

    Example: 2 experts of 2 places, rows choose 1, 0, 1, 1 → round 0 holds rows [1 -] and [0 2],
    round 1 [- -] and [3 -].

    Args:
        chosen: [rows, choices] i32 – `num_experts` for none: such a choice has no place.
    """
    count, choices = chosen.size, chosen.shape[1]
    most = -(-chosen.shape[0] // num_places)
    # One sort of (expert, choice), as one number.
    order = lax.sort(chosen.reshape(-1) * count + jnp.arange(count, dtype=jnp.int32))
    expert, choice = lax.div(order, jnp.int32(count)), lax.rem(order, jnp.int32(count))
    numbers = jnp.arange(num_experts, dtype=jnp.int32)
    sizes = jnp.sum(chosen.reshape(-1, 1) == numbers[None, :], axis=0, dtype=jnp.int32)
    before = jnp.cumsum(sizes, dtype=jnp.int32) - sizes  # choices of the experts before
    rank = jnp.arange(count, dtype=jnp.int32) - jnp.take(before, expert, mode="clip")
    turn = jnp.where(expert < num_experts, lax.div(rank, jnp.int32(num_places)), most)
    place = expert * num_places + lax.rem(rank, jnp.int32(num_places))
    in_a_round = num_experts * num_places
    table = jnp.zeros(most * in_a_round, jnp.int32)
    rows = lax.div(choice, jnp.int32(choices))
    table = table.at[turn * in_a_round + place].set(rows, mode="drop")
    by_choice = jnp.zeros((2, count), jnp.int32).at[:, choice].set(jnp.stack([turn, place]))
    turns, places = by_choice.reshape(2, *chosen.shape)
    return Seating(
        rows=table.reshape(most, num_experts, num_places),
        rounds=turns,
        places=places,
        num_rounds=lax.div(jnp.max(sizes) + jnp.int32(num_places - 1), jnp.int32(num_places)),
    )


def _run_rounds(x: jax.Array, seating: Seating, run: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """[rows, chosen, E] f32: what the chosen experts make of each row; zeros for none."""

    def one_round(turn: jax.Array | int, made: jax.Array) -> jax.Array:
        seated = x[lax.dynamic_index_in_dim(seating.rows, turn, keepdims=False)]
        fresh = run(seated).reshape(-1, x.shape[1])
        fresh = jnp.take(fresh, seating.places, axis=0, mode="clip")
        return jnp.where((seating.rounds == turn)[:, :, None], fresh, made)

    made = jnp.zeros((*seating.rounds.shape, x.shape[1]), jnp.float32)
    if seating.rows.shape[0] == 1:
        return one_round(0, made)
    return lax.fori_loop(0, seating.num_rounds, one_round, made)


def _add_shares(made: jax.Array, shares: jax.Array) -> jax.Array:
    """[rows, E]: the experts' outputs by share, added in the order of the choices."""
    total = jnp.zeros((made.shape[0], made.shape[2]), jnp.float32)
    for choice in range(made.shape[1]):
        total = total + rounded(made[:, choice] * shares[:, choice, None])
    return total
