"""Rows grouped by expert into tiles."""

import jax.numpy as jnp
import numpy as np

from jaxinfer.layers.expert_tiles import as_floats, group_rows, one_expert, tile_rows
from jaxinfer.layers.weights import Weight


def test_the_example_and_a_row_that_chooses_nothing() -> None:
    tiles = group_rows(jnp.asarray([[1], [0], [1], [2], [1]], jnp.int32), 2, 2)
    assert tiles.experts[:3].tolist() == [0, 1, 1]
    assert int(tiles.num_used) == 3
    assert tiles.rows[0, 0] == 1 and tiles.rows[1].tolist() == [0, 2] and tiles.rows[2, 0] == 4
    assert tiles.places[[0, 1, 2, 4], 0].tolist() == [2, 0, 3, 4]
    assert tiles.places[3, 0] == tiles.rows.size


def test_every_choice_has_a_place_of_its_own_with_its_row_and_expert() -> None:
    random = np.random.default_rng(0)
    for num_rows in (1, 3, 40):
        chosen = np.stack([random.permutation(7)[:3] for _ in range(num_rows)]).astype(np.int32)
        size = tile_rows(num_rows, 3, 7)
        tiles = group_rows(jnp.asarray(chosen), 7, size)
        places = np.asarray(tiles.places)
        assert len(set(places.reshape(-1))) == places.size
        assert (np.asarray(tiles.rows).reshape(-1)[places] == np.arange(num_rows)[:, None]).all()
        assert (np.asarray(tiles.experts)[places // size] == chosen).all()
        assert places.max() < int(tiles.num_used) * size


def test_one_expert_of_bits() -> None:
    stack = jnp.arange(24, dtype=jnp.bfloat16).reshape(3, 2, 4)
    bits = Weight(value=stack.view(jnp.uint16))
    taken = one_expert({"gate": bits}, jnp.int32(2))["gate"].value
    assert taken.dtype == jnp.bfloat16 and (taken == stack[2]).all()
    assert (as_floats(bits.value) == stack).all()
