"""DEV. Experts in rounds: all at once, each on a fixed number of places. What a GPU runs.

All experts' places are filled with rows and go through one batched product, which reads each stack
where it lies; rows for which there was no place wait for the next round. What else is in a step
decides how many rounds there are and in which of them a row is, not what becomes of it.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from jaxinfer.config.geometry import Geometry
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.layers.expert_tiles import as_floats, sort_choices
from jaxinfer.layers.rounded_inputs import round_inputs
from jaxinfer.layers.weights import (
    BiasedWeight,
    BlockScaledWeight,
    LinearWeight,
    ObservedMatrix,
    OffsetWeight,
    PackedMatrix,
    PermutedWeight,
    RoundedInputWeight,
    ZeroPointWeight,
)
from pallas_kernels.dispatch import Platform
from pallas_kernels.grouped_matmul import (
    grouped_matmul,
    resolve_implementation,
    why_not_mosaic,
)
from pallas_kernels.grouped_matmul.tiles import TILE_ROWS
from pallas_kernels.quant_matmul import stacked_quant_matmul

# Fewer places save nothing: the product takes the time in which the stack is read.
_MIN_PLACES = 16


@struct.dataclass
class Seating:
    """Which row has which place of which expert, round after round."""

    rows: jax.Array  # [rounds, X, places] i32, row of x; padding holds any row
    rounds: jax.Array  # [rows, choices] i32, round of each choice; past the last for none
    places: jax.Array  # [rows, choices] i32, its place among the X · places of that round
    counts: jax.Array  # [X] i32, choices of each expert in all rounds
    num_rounds: jax.Array  # [] i32, rounds that hold anything


def run_in_rounds(
    x: jax.Array,
    weights: dict,
    chosen: jax.Array,
    *,
    mlp: Callable[..., jax.Array],
    num_experts: int,
    kernel: str,
) -> jax.Array:
    """What the chosen experts make of each row.

    Args:
        x: [rows, E].
        weights: records with a leading axis of experts on every array.
        chosen: [rows, choices] i32 – `num_experts` for none.
        mlp: (rows, records, apply=how a record is applied) → what is made of them.
        kernel: implementation of `grouped_matmul`.

    Returns:
        [rows, choices, E] f32; zeros for none.

    Cost: 6·X·places·E·F FLOPs and all stacks read once, a round; less as the kernel does.
    """
    is_plain = all(isinstance(one.value, jax.Array) for one in weights.values())
    unit = TILE_ROWS if kernel in ("mosaic", "simulated") and is_plain else 1
    places = places_of_expert(chosen.shape[0], chosen.shape[1], num_experts, unit)
    seating = seat_rows(chosen, num_experts, places)
    stacks = jax.tree.map(as_floats, weights)

    def one_round(turn: jax.Array, made: jax.Array) -> jax.Array:
        seated = x[lax.dynamic_index_in_dim(seating.rows, turn, keepdims=False)]
        counts = jnp.clip(seating.counts - turn * places, 0, places)
        apply = functools.partial(apply_stack, counts=counts, kernel=kernel)
        fresh = mlp(seated, stacks, apply=apply).reshape(-1, x.shape[1])
        fresh = jnp.take(fresh, seating.places, axis=0, mode="clip")
        return jnp.where((seating.rounds == turn)[:, :, None], fresh, made)

    made = jnp.zeros((*chosen.shape, x.shape[1]), jnp.float32)
    if seating.rows.shape[0] == 1:
        return one_round(jnp.int32(0), made)
    return lax.fori_loop(0, seating.num_rounds, one_round, made)


def places_of_expert(num_rows: int, num_choices: int, num_experts: int, unit: int = 1) -> int:
    """Places of an expert in a round: twice as many as there are rows for each on average.

    With as many places as there are rows nothing ever waits, and there is no loop. The number is a
    multiple of `unit`.
    """
    share = -(-2 * num_rows * num_choices // num_experts)
    wanted = min(num_rows, max(_MIN_PLACES, 1 << max(share - 1, 0).bit_length()))
    return -(-wanted // unit) * unit


def seat_rows(chosen: jax.Array, num_experts: int, num_places: int) -> Seating:
    """A place for every choice, those of an expert in the order of the rows.

    Example: 2 experts of 2 places, rows choose 1, 0, 1, 1 → round 0 holds rows [1 -] and [0 2],
    round 1 [- -] and [3 -].

    Args:
        chosen: [rows, choices] i32 – `num_experts` for none: such a choice has no place.
    """
    count, choices = chosen.size, chosen.shape[1]
    most = -(-chosen.shape[0] // num_places)
    expert, choice, rank, sizes = sort_choices(chosen, num_experts)
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
        counts=sizes,
        num_rounds=lax.div(jnp.max(sizes) + jnp.int32(num_places - 1), jnp.int32(num_places)),
    )


def apply_stack(x: jax.Array, weight: LinearWeight, *, counts: jax.Array, kernel: str) -> jax.Array:
    """`linear` of each expert on its own rows.

    Args:
        x: [X, places, in].
        weight: a record with a leading axis of experts on every array.
        counts: [X] i32 – rows that are wanted.
        kernel: for plain matrices; a packed one names its own.

    Returns:
        [X, places, out] f32, anything in rows that are not wanted.
    """
    matrix = weight.value
    if isinstance(matrix, ObservedMatrix):
        matrix.observe(x)
        matrix = matrix.value
    if isinstance(matrix, jax.Array):
        out = grouped_matmul(x, matrix, counts, implementation=kernel)  # type: ignore[arg-type]
    else:
        out = _packed_product(x, matrix, counts)  # type: ignore[arg-type]  # no stack is streamed
    return out + weight.bias[:, None] if isinstance(weight, BiasedWeight) else out


def _packed_product(x: jax.Array, matrix: PackedMatrix, counts: jax.Array) -> jax.Array:
    """As `layers.linear.matmul`, of each expert."""
    match matrix:
        case RoundedInputWeight(matrix=inner):
            return _packed_product(
                round_inputs(x, matrix.inputs, matrix.input_group), inner, counts
            )
        case PermutedWeight(order=order, matrix=inner):
            turned = jnp.take_along_axis(x, order[:, None, :], axis=-1, mode="clip")
            return _packed_product(turned, inner, counts)
    return stacked_quant_matmul(
        x,
        matrix.codes,
        matrix.scales,
        counts,
        matrix.zeros if isinstance(matrix, ZeroPointWeight) else None,
        matrix.offsets if isinstance(matrix, OffsetWeight) else None,
        group=matrix.group,
        out_group=matrix.out_group if isinstance(matrix, BlockScaledWeight) else 1,
        implementation=matrix.kernel,  # type: ignore[arg-type]  # checked where it was decided
    )


def choose_expert_kernel(
    wanted: str, geometry: Geometry, model: ModelConfig, platform: Platform
) -> str:
    """How a model's experts run on a platform, as `layers.moe.moe` takes it.

    Args:
        wanted: "auto" or a name of the implementations of `grouped_matmul`.

    Raises:
        ValueError: the named implementation does not serve these experts there.
    """
    if model.experts is None or (platform.kind == "cpu" and wanted in ("auto", "reference")):
        return "tiles"
    if wanted == "triton":  # in which there is no such product
        return "reference"
    calls = _products(geometry, model)
    found = {resolve_implementation(wanted, *call, platform) for call in calls}
    return found.pop() if len(found) == 1 else "reference"


def why_not_experts(geometry: Geometry, model: ModelConfig, platform: Platform) -> str | None:
    """Why the kernel does not serve these experts there, or None."""
    reasons = [why_not_mosaic(*call, platform) for call in _products(geometry, model)]
    return next((reason for reason in reasons if reason), None)


def _products(
    geometry: Geometry, model: ModelConfig
) -> list[tuple[dict[str, tuple[int, ...]], dict[str, str]]]:
    """Shapes and dtypes of gate or up, and of down."""
    assert model.experts is not None
    count, width, size = model.experts.num_experts, model.hidden_size, model.experts.mlp_size
    dtypes = {"x": geometry.activation_dtype, "matrices": geometry.weight_dtype}
    return [
        ({"x": (count, TILE_ROWS, inputs), "matrices": (count, outputs, inputs)}, dtypes)
        for inputs, outputs in ((width, size), (size, width))
    ]
