"""DEV. Experts tile by tile: a loop over groups of rows that have one expert. What a CPU runs.

Only experts that a row has chosen are touched. A tile has a fixed number of rows, so that no row's
bits depend on what else is in the step.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

# Rows of a tile: few, so that little is padding; many, so that an expert is read once.
_MIN_TILE_ROWS, _MAX_TILE_ROWS = 2, 32


@struct.dataclass
class Tiles:
    """The rows of a step grouped by expert: T tiles of one expert each, the last ones unused."""

    experts: jax.Array  # [T] i32, expert of a tile
    rows: jax.Array  # [T, tile rows] i32, row of x at each place; padding holds any row
    places: jax.Array  # [rows, choices] i32, where among the T · tile rows; past the last for none
    num_used: jax.Array  # [] i32, tiles that hold anything


def run_in_tiles(
    x: jax.Array,
    weights: dict,
    chosen: jax.Array,
    *,
    mlp: Callable[..., jax.Array],
    num_experts: int,
) -> jax.Array:
    """What the chosen experts make of each row; as `expert_rounds.run_in_rounds`.

    Cost: 6·E·F FLOPs for each of the tiles' rows; an expert is read once a tile of it.
    """
    rows_of_a_tile = tile_rows(chosen.shape[0], chosen.shape[1], num_experts)
    tiles = group_rows(chosen, num_experts, rows_of_a_tile)
    num_tiles, num_rows = tiles.rows.shape

    def run(tile: jax.Array, out: jax.Array) -> jax.Array:
        rows = x[lax.dynamic_index_in_dim(tiles.rows, tile, keepdims=False)]
        made = mlp(rows, one_expert(weights, tiles.experts[tile]))
        return lax.dynamic_update_slice(out, made, (tile * num_rows, jnp.int32(0)))

    out = jnp.zeros((num_tiles * num_rows, x.shape[1]), jnp.float32)
    out = lax.fori_loop(0, tiles.num_used, run, out)
    return jnp.take(out, tiles.places, axis=0, mode="fill", fill_value=0)


def tile_rows(num_rows: int, num_choices: int, num_experts: int) -> int:
    """Rows of a tile: twice what an expert gets on average, a power of two."""
    share = -(-2 * num_rows * num_choices // num_experts)
    wanted = 1 << max(share - 1, 0).bit_length()
    return min(max(wanted, _MIN_TILE_ROWS), _MAX_TILE_ROWS)


def group_rows(chosen: jax.Array, num_experts: int, num_rows: int) -> Tiles:
    """Tiles of `num_rows` places, each with rows of one expert.

    Example: 2 experts, tiles of 2, rows choose 1, 0, 1, 1 → tile 0 has expert 0 and row 1, tiles 1
    and 2 have expert 1 and rows 0 2, 3.

    Args:
        chosen: [rows, choices] i32 – `num_experts` for none: such a choice is in no tile.
    """
    count, choices = chosen.size, chosen.shape[1]
    most = count // num_rows + min(num_experts, count)
    expert, choice, rank, sizes = sort_choices(chosen, num_experts)
    tile_counts = lax.div(sizes + jnp.int32(num_rows - 1), jnp.int32(num_rows))
    ends = jnp.cumsum(tile_counts, dtype=jnp.int32)
    firsts = (ends - tile_counts) * num_rows
    places = jnp.where(
        expert < num_experts, jnp.take(firsts, expert, mode="clip") + rank, most * num_rows
    )
    table = jnp.zeros(most * num_rows, jnp.int32)
    rows = table.at[places].set(lax.div(choice, jnp.int32(choices)), mode="drop")
    numbers = jnp.arange(most, dtype=jnp.int32)
    passed = jnp.sum(ends[None, :] <= numbers[:, None], axis=1, dtype=jnp.int32)
    return Tiles(
        experts=jnp.minimum(passed, num_experts - 1),
        rows=rows.reshape(most, num_rows),
        places=jnp.zeros(count, jnp.int32).at[choice].set(places).reshape(chosen.shape),
        num_used=ends[-1],
    )


def sort_choices(
    chosen: jax.Array, num_experts: int
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """All choices in the order of their experts, those of an expert in the order of the rows.

    Args:
        chosen: [rows, choices] i32 – `num_experts` for none.

    Returns:
        [choices of all rows] i32 each: expert, number of the choice, rank among those of its
        expert; and [X] i32, choices of each expert.
    """
    count = chosen.size
    # One sort of (expert, choice), as one number.
    order = lax.sort(chosen.reshape(-1) * count + jnp.arange(count, dtype=jnp.int32))
    expert, choice = lax.div(order, jnp.int32(count)), lax.rem(order, jnp.int32(count))
    numbers = jnp.arange(num_experts, dtype=jnp.int32)
    sizes = jnp.sum(chosen.reshape(-1, 1) == numbers[None, :], axis=0, dtype=jnp.int32)
    before = jnp.cumsum(sizes, dtype=jnp.int32) - sizes  # choices of the experts before
    rank = jnp.arange(count, dtype=jnp.int32) - jnp.take(before, expert, mode="clip")
    return expert, choice, rank, sizes


def one_expert(weights: dict, expert: jax.Array) -> dict:
    """The records of one expert, out of records with a leading axis of experts."""

    def take(array: jax.Array) -> jax.Array:
        return as_floats(lax.dynamic_index_in_dim(array, expert, keepdims=False))

    return jax.tree.map(take, weights)


def as_floats(array: jax.Array) -> jax.Array:
    """bfloat16 out of its bits; other arrays as they are.

    Stacks keep bits: a CPU's compiler turns a whole stack of bfloat16 into float32 before a loop
    that takes slices of it.
    """
    if array.dtype != jnp.uint16:
        return array
    return lax.bitcast_convert_type(array, jnp.bfloat16)
