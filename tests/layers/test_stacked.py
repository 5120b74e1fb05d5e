"""Matrices of the same rows as one: the same products, and nothing is held twice."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.layers import stacked
from jaxinfer.layers.attention import _projections
from jaxinfer.layers.linear import linear
from jaxinfer.layers.mlp import gated_mlp
from jaxinfer.layers.stacked import stack_products
from jaxinfer.layers.weights import (
    BiasedWeight,
    BlockScaledWeight,
    PermutedWeight,
    QuantWeight,
    RoundedInputWeight,
    Weight,
    ZeroPointWeight,
)
from tests.support.records import model_config
from tests.support.tolerances import KERNELS

WIDTH, SIZES = 64, {"q": 32, "k": 16, "v": 16}


def random(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def quantized(outputs: int, seed: int, group: int = 32) -> dict[str, jax.Array]:
    codes = np.random.default_rng(seed).integers(0, 256, (outputs, WIDTH // 2))
    return {
        "codes": jnp.asarray(codes, jnp.uint8),
        "scales": random(WIDTH // group, outputs, seed=seed),
    }


def records(kind: str) -> dict[str, Any]:
    made = {}
    for seed, (name, outputs) in enumerate(SIZES.items()):
        plain, sizes = random(outputs, WIDTH, seed=seed), {"bits": 4, "group": 32}
        packed = quantized(outputs, seed)
        zeros = jnp.full(packed["scales"].shape, seed, jnp.int8)
        match kind:
            case "plain":
                made[name] = Weight(value=plain)
            case "biased":
                made[name] = BiasedWeight(value=plain, bias=random(outputs, seed=9 + seed))
            case "packed":
                made[name] = Weight(value=QuantWeight(**packed, **sizes))
            case "zeros":
                made[name] = Weight(value=ZeroPointWeight(**packed, zeros=zeros, **sizes))
            case "permuted":
                order = jnp.arange(WIDTH, dtype=jnp.int32)
                made[name] = Weight(PermutedWeight(order, QuantWeight(**packed, **sizes)))
            case "blocks":
                codes = jnp.ones((outputs, WIDTH), jnp.int8)
                sizes = {"bits": 8, "group": 32, "out_group": 16}
                scales = random(2, outputs // 16, seed=seed)
                made[name] = Weight(BlockScaledWeight(codes=codes, scales=scales, **sizes))
    return made


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    """A CPU adds up in another order where a matrix has more outputs."""
    assert found.shape == expected.shape
    difference = np.linalg.norm(found - expected)
    assert difference <= KERNELS["float32"] * np.linalg.norm(expected)


def assert_same_products(kind: str) -> None:
    x, apart = random(3, WIDTH, seed=5), records(kind)
    expected = [np.asarray(linear(x, one)) for one in apart.values()]
    together = stack_products({"layers": [records(kind)]})["layers"][0]
    assert set(together) == {"qkv"}
    config = model_config(num_heads=2, num_kv_heads=1, head_dim=16)
    for found, wanted in zip(_projections(x, together, config), expected, strict=True):
        assert_close(np.asarray(found), wanted)


def test_products_of_a_stack_are_those_of_its_parts() -> None:
    for kind in ("plain", "biased", "packed", "zeros", "blocks"):
        assert_same_products(kind)


def test_gate_and_up_too() -> None:
    mlp = {name: Weight(random(48, WIDTH, seed=i)) for i, name in enumerate(("gate", "up"))}
    mlp["down"] = Weight(random(WIDTH, 48, seed=3))
    x = random(2, WIDTH, seed=4)
    expected = np.asarray(gated_mlp(x, mlp, "silu"))
    together = stack_products(mlp)
    assert set(together) == {"gate_up", "down"}
    assert_close(np.asarray(gated_mlp(x, together, "silu")), expected)


def test_what_is_not_alike_stays_apart() -> None:
    assert set(stack_products(records("permuted"))) == {"q", "k", "v"}
    mixed = records("plain") | {"k": records("packed")["k"]}
    assert stack_products(mixed)["k"] is mixed["k"]
    typed = records("plain") | {"v": Weight(random(16, WIDTH).astype(jnp.bfloat16))}
    assert set(stack_products(typed)) == {"q", "k", "v"}
    halves = records("blocks")
    short = BlockScaledWeight(
        codes=jnp.ones((8, WIDTH), jnp.int8),
        scales=random(2, 1),
        bits=8,
        group=32,
        out_group=16,
    )
    assert set(stack_products(halves | {"k": Weight(short)})) == {"q", "k", "v"}
    rounded = {
        name: Weight(RoundedInputWeight(matrix=one.value, inputs="int8", input_group=32))
        for name, one in (halves | {"k": Weight(short)}).items()
    }
    assert set(stack_products(rounded)) == {"q", "k", "v"}
    experts = {name: Weight(random(2, 8, WIDTH)) for name in ("gate", "up")}
    assert set(stack_products({"experts": experts})["experts"]) == {"gate", "up"}


def test_stacks_are_given_back_where_a_later_one_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []

    def concatenate(leaves: list[Any], axis: int) -> Any:
        if made:
            raise MemoryError
        made.append(jnp.concatenate(leaves, axis))
        return made[0]

    monkeypatch.setattr(stacked, "_concatenated", concatenate)
    with pytest.raises(MemoryError):
        stack_products({"layers": [records("plain"), records("plain")]})
    assert made[0].is_deleted()


def test_nothing_is_held_twice_and_what_is_shared_stays_shared() -> None:
    model, alone = records("plain"), records("plain")["q"]
    shared = {"layers": [model], "draft": {"layers": [dict(model)]}, "other": model["q"]}
    found = stack_products(shared)
    assert found["layers"][0]["qkv"].value is found["draft"]["layers"][0]["qkv"].value
    assert not found["other"].value.is_deleted()  # it is read elsewhere, too
    assert model["k"].value.is_deleted() and model["v"].value.is_deleted()
    assert not alone.value.is_deleted()


def test_shapes_are_stacked_like_arrays() -> None:
    shapes = jax.eval_shape(lambda: records("zeros"))
    arrays = stack_products(records("zeros"))
    found = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), stack_products(shapes))
    assert found == jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), arrays)
