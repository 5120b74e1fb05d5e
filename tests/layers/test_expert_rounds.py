"""The form for GPUs: the same numbers as tiles, and rounds for those that find no place."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.layers.expert_rounds import places_of_expert, run_in_rounds, seat_rows
from jaxinfer.layers.expert_tiles import run_in_tiles
from jaxinfer.layers.mlp import gated_mlp
from jaxinfer.layers.weights import BiasedWeight, PermutedWeight, QuantWeight, Weight
from tests.support.tolerances import KERNELS

MLP = functools.partial(gated_mlp, activation="silu")


def test_the_example_and_a_row_that_chooses_nothing() -> None:
    seats = seat_rows(jnp.asarray([[1], [0], [1], [2], [1]], jnp.int32), 2, 2)
    assert seats.rows[0, 0, 0] == 1 and seats.rows[0, 1].tolist() == [0, 2]
    assert seats.rows[1, 1, 0] == 4
    assert seats.rounds[:, 0].tolist() == [0, 0, 0, 3, 1]
    assert seats.places[[0, 1, 2, 4], 0].tolist() == [2, 0, 3, 2]
    assert int(seats.num_rounds) == 2


def test_rounds_give_what_tiles_give_bit_for_bit() -> None:
    """On a CPU: few rows in one round, a crowd in several, rows without experts."""
    random = np.random.default_rng(0)
    shapes = {"gate": (6, 80, 64), "up": (6, 80, 64), "down": (6, 64, 80)}
    weights = {
        name: Weight(value=jnp.asarray(random.standard_normal(shape, np.float32)))
        for name, shape in shapes.items()
    }
    for num_rows in (2, 90):
        x = jnp.asarray(random.standard_normal((num_rows, 64), np.float32))
        chosen = np.stack([random.permutation(6)[:2] for _ in range(num_rows)]).astype(np.int32)
        chosen[num_rows // 5 :] = [1, 4]  # 72 rows for 64 places
        chosen[0] = 6
        forms = (functools.partial(run_in_rounds, kernel="reference"), run_in_tiles)
        found = [
            jax.jit(functools.partial(run, mlp=MLP, num_experts=6))(x, weights, chosen)
            for run in forms
        ]
        np.testing.assert_array_equal(*map(np.asarray, found))
        assert not np.asarray(found[0])[0].any() and np.asarray(found[0])[1:].any()
    assert places_of_expert(90, 2, 6) == 64


def test_packed_stacks_simulated() -> None:
    """Codes with biases, and columns in an order of their own: as the decoded ones."""
    random = np.random.default_rng(2)

    def packed(kernel: str, *, is_permuted: bool) -> BiasedWeight:
        codes = jnp.asarray(random.integers(-127, 128, (4, 128, 128)), jnp.int8)
        scales = jnp.asarray(random.uniform(0.5e-3, 1e-3, (4, 4, 128)), jnp.bfloat16)
        matrix = QuantWeight(codes=codes, scales=scales, bits=8, group=32, kernel=kernel)
        order = np.stack([random.permutation(128) for _ in range(4)]).astype(np.int32)
        turned = PermutedWeight(order=jnp.asarray(order), matrix=matrix)
        bias = jnp.asarray(random.standard_normal((4, 128), np.float32))
        return BiasedWeight(value=turned if is_permuted else matrix, bias=bias)

    x = jnp.asarray(random.standard_normal((5, 128)), jnp.bfloat16)
    chosen = jnp.asarray([[0, 2], [2, 0], [4, 4], [2, 3], [0, 3]], jnp.int32)
    found = []
    for kernel in ("reference", "simulated"):
        random = np.random.default_rng(3)
        weights = {
            name: packed(kernel, is_permuted=name == "down") for name in ("gate", "up", "down")
        }
        run = run_in_rounds(x, weights, chosen, mlp=MLP, num_experts=4, kernel="reference")
        found.append(np.asarray(run))
    assert not found[1][2].any() and found[1].any()
    difference = np.linalg.norm(found[0] - found[1])
    assert difference <= KERNELS["bfloat16"] * np.linalg.norm(found[0])


def test_the_kernel_simulated() -> None:
    """bfloat16 stacks kept as bits; rows that nobody wants come out as NaN and are not taken."""
    random = np.random.default_rng(1)
    shapes = {"gate": (4, 128, 128), "up": (4, 128, 128), "down": (4, 128, 128)}
    weights = {
        name: Weight(
            value=jnp.asarray(0.1 * random.standard_normal(shape), jnp.bfloat16).view(jnp.uint16)
        )
        for name, shape in shapes.items()
    }
    x = jnp.asarray(random.standard_normal((5, 128)), jnp.bfloat16)
    chosen = jnp.asarray([[0, 2], [2, 0], [4, 4], [2, 3], [0, 3]], jnp.int32)
    found = [
        np.asarray(run_in_rounds(x, weights, chosen, mlp=MLP, num_experts=4, kernel=kernel))
        for kernel in ("reference", "simulated")
    ]
    assert not found[1][2].any()
    difference = np.linalg.norm(found[0] - found[1])
    assert difference <= KERNELS["bfloat16"] * np.linalg.norm(found[0])
