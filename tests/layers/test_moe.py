"""The experts' layer: its numbers in float64, its bits whatever else is in the step, its memory."""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.config.expert_config import ExpertConfig
from jaxinfer.layers.moe import choose_experts, moe
from jaxinfer.layers.weights import BiasedWeight, QuantWeight, Weight

WIDTH, MLP, EXPERTS = 96, 80, 6
CONFIG = ExpertConfig(
    num_experts=EXPERTS, num_chosen=3, mlp_size=MLP, renormalizes=True, is_sparse=(True,)
)


def random_weights(seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    shapes = {
        "router": (EXPERTS, WIDTH),
        "gate": (EXPERTS, MLP, WIDTH),
        "up": (EXPERTS, MLP, WIDTH),
        "down": (EXPERTS, WIDTH, MLP),
    }
    return {name: 0.2 * random.standard_normal(s, np.float32) for name, s in shapes.items()}


def as_records(weights: dict[str, np.ndarray], dtype: Any = jnp.float32) -> dict:
    def stored(value: np.ndarray) -> jax.Array:
        array = jnp.asarray(value, dtype)
        return jax.lax.bitcast_convert_type(array, jnp.uint16) if array.itemsize == 2 else array

    records = {name: Weight(value=stored(value)) for name, value in weights.items()}
    router = Weight(value=jnp.asarray(weights["router"]))
    return {"router": router, "experts": {name: records[name] for name in ("gate", "up", "down")}}


def exact(x: np.ndarray, weights: dict[str, np.ndarray], config: ExpertConfig) -> np.ndarray:
    """Row by row, expert by expert, in float64."""
    wide = {name: value.astype(np.float64) for name, value in weights.items()}
    out = np.zeros(x.shape)
    for row, values in enumerate(x.astype(np.float64)):
        scores = wide["router"] @ values
        shares = np.exp(scores - scores.max())
        shares /= shares.sum()
        chosen = np.argsort(-shares)[: config.num_chosen]
        total = shares[chosen].sum() if config.renormalizes else 1.0
        for expert in chosen:
            gate, up = wide["gate"][expert] @ values, wide["up"][expert] @ values
            made = wide["down"][expert] @ (gate / (1 + np.exp(-gate)) * up)
            out[row] += shares[expert] / total * made
    return out


def run(
    x: np.ndarray,
    weights: dict,
    config: ExpertConfig = CONFIG,
    real: Any = None,
    kernel: str = "tiles",
) -> Any:
    """[rows, width] → the same, all rows in one sequence."""
    is_real = np.ones(len(x), bool) if real is None else real
    made = program(jnp.asarray(x)[None], weights, jnp.asarray(is_real)[None], config, kernel)
    return np.asarray(made)[0]


@functools.partial(jax.jit, static_argnums=(3, 4))
def program(
    x: jax.Array, weights: dict, is_real: jax.Array, config: ExpertConfig, kernel: str
) -> jax.Array:
    return moe(x, weights, is_real, experts=config, activation="silu", kernel=kernel)


@pytest.mark.parametrize("renormalizes", [False, True])
@pytest.mark.parametrize("num_chosen", [1, 3, EXPERTS])
def test_equals_float64(renormalizes: bool, num_chosen: int) -> None:
    config = replace(CONFIG, renormalizes=renormalizes, num_chosen=num_chosen)
    weights = random_weights()
    x = np.random.default_rng(1).standard_normal((40, WIDTH), np.float32)
    found = run(x, as_records(weights), config)
    np.testing.assert_allclose(found, exact(x, weights, config), rtol=0, atol=1e-4)


def test_shares_add_up_to_one_only_on_request() -> None:
    scores = jnp.asarray([[0.0, 3.0, 1.0, 2.0, -1.0, 0.5]])
    chosen, shares = choose_experts(scores, CONFIG)
    assert chosen.tolist() == [[1, 3, 2]]
    assert abs(float(shares.sum()) - 1) < 1e-6
    _, plain = choose_experts(scores, replace(CONFIG, renormalizes=False))
    np.testing.assert_allclose(plain, jax.nn.softmax(scores)[:, [1, 3, 2]], rtol=1e-6)


def test_far_scores_do_not_overflow() -> None:
    for renormalizes in (False, True):
        config = replace(CONFIG, renormalizes=renormalizes)
        _, shares = choose_experts(jnp.asarray([[1e4, -1e4, 0.0, 9e3, 1.0, 2.0]]), config)
        assert shares.tolist() == [[1.0, 0.0, 0.0]]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_row_s_bits_do_not_depend_on_the_others(dtype: Any) -> None:
    """Alone, beside rows that choose otherwise, in a crowd that all choose the same, anywhere."""
    weights = as_records(random_weights(), dtype)
    random = np.random.default_rng(2)
    row = random.standard_normal((1, WIDTH), np.float32)
    alone = run(row, weights)[0]
    for count in (2, 8, 33, 64, 200):
        others = random.standard_normal((count, WIDTH), np.float32)
        crowd = row + 1e-3 * others  # all but the same: all choose the same
        for beside in (others, crowd):
            for place in (0, count // 2, count - 1):
                x = beside.copy()
                x[place] = row
                np.testing.assert_array_equal(run(x, weights)[place], alone)


@pytest.mark.parametrize("kernel", ["tiles", "reference"])
def test_padding_chooses_nothing(kernel: str) -> None:
    weights = as_records(random_weights())
    x = np.random.default_rng(3).standard_normal((24, WIDTH), np.float32)
    real = np.arange(24) % 3 > 0
    everything = run(x, weights, kernel=kernel)
    x[~real] = np.nan
    found = run(x, weights, real=real, kernel=kernel)
    np.testing.assert_array_equal(found[real], everything[real])
    assert not found[~real].any()


@pytest.mark.parametrize("kernel", ["tiles", "reference"])
def test_biases_and_packed_stacks(kernel: str) -> None:
    """A stack of records is a record: int8 codes with scales, and a bias, an expert each."""
    weights = random_weights()
    records = as_records(weights)
    random = np.random.default_rng(4)
    codes = random.integers(-127, 128, (EXPERTS, MLP, WIDTH)).astype(np.int8)
    scales = (random.random((EXPERTS, 1, MLP)) / 256).astype(np.float32)
    weights["up"] = codes * scales.transpose(0, 2, 1)
    bias = random.standard_normal((EXPERTS, WIDTH), np.float32)
    packed = QuantWeight(codes=jnp.asarray(codes), scales=jnp.asarray(scales), bits=8, group=WIDTH)
    records["experts"]["up"] = Weight(value=packed)
    records["experts"]["down"] = BiasedWeight(
        value=records["experts"]["down"].value, bias=jnp.asarray(bias)
    )
    x = random.standard_normal((5, WIDTH), np.float32)
    chosen, shares = choose_experts(jnp.asarray(x @ weights["router"].T), CONFIG)
    added = np.einsum("rc,rce->re", np.asarray(shares), bias[np.asarray(chosen)])
    wanted = exact(x, weights, CONFIG) + added
    np.testing.assert_allclose(run(x, records, kernel=kernel), wanted, rtol=0, atol=1e-4)


def test_no_stack_is_copied() -> None:
    """A CPU's compiler copies a stack of bfloat16 that is sliced in a loop: not one of bits."""
    shapes = {"gate": (32, 256, 256), "up": (32, 256, 256), "down": (32, 256, 256)}
    stack = {
        name: Weight(value=jax.ShapeDtypeStruct(shape, jnp.uint16))  # type: ignore[arg-type]
        for name, shape in shapes.items()
    }
    router = Weight(value=jax.ShapeDtypeStruct((32, 256), jnp.float32))  # type: ignore[arg-type]
    config = replace(CONFIG, num_experts=32, mlp_size=256)
    arguments = (
        jax.ShapeDtypeStruct((8, 8, 256), jnp.float32),
        {"router": router, "experts": stack},
        jax.ShapeDtypeStruct((8, 8), jnp.bool_),
    )
    memory = program.lower(*arguments, config, "tiles").compile().memory_analysis()
    one_stack = 32 * 256 * 256 * 2
    assert memory.argument_size_in_bytes > 3 * one_stack
    assert memory.temp_size_in_bytes < one_stack + 12 * 2**20 // 4
