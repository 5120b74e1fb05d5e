"""Attention over pages: new tokens are written first, then read; prefill = token by token."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.cache import page_slots
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.config.rope_config import RopeConfig
from jaxinfer.layers.attention import paged_self_attention
from jaxinfer.layers.linear import add_parts
from jaxinfer.layers.rope import rope_table
from jaxinfer.layers.weights import Weight
from tests.support.records import model_config
from tests.support.tolerances import KERNELS

PAGE, TOKENS = 8, 12
TABLE = np.array([[3, 1]], np.int32)


def random_weights(config: ModelConfig) -> dict[str, Any]:
    random = np.random.default_rng(0)
    wide, narrow = (n * config.head_dim for n in (config.num_heads, config.num_kv_heads))
    shapes = {"q": (wide, 64), "k": (narrow, 64), "v": (narrow, 64), "o": (64, wide)}
    weights: dict[str, Any] = {
        name: Weight(value=jnp.asarray(0.1 * random.normal(size=shape), jnp.float32))
        for name, shape in shapes.items()
    }
    for name in ("q_norm", "k_norm") if config.qk_norm else ():
        weights[name] = jnp.asarray(1 + 0.1 * random.normal(size=config.head_dim), jnp.float32)
    return weights


@functools.cache
def program_for(config: ModelConfig, window: int) -> Any:
    weights = random_weights(config)

    @jax.jit
    def program(piece, pages, start):
        size = piece.shape[1]
        lengths = jnp.full((1,), size, jnp.int32)
        slots = page_slots(jnp.asarray(TABLE), start, lengths, size, PAGE)
        positions = start[:, None] + jnp.arange(size, dtype=jnp.int32)[None, :]
        rope = rope_table(RopeConfig(), positions, config.head_dim)
        parts, pages = paged_self_attention(
            piece, weights, pages, slots, rope, config=config, window=window, kernel="reference"
        )
        return add_parts(parts), pages

    return program


def run(config: ModelConfig, window: int, x: np.ndarray, sizes: list[int]) -> np.ndarray:
    """The outputs of one row's tokens, given in pieces of `sizes` tokens over the same pages."""
    program, outputs, start = program_for(config, window), [], 0
    shape = (5, config.num_kv_heads, PAGE, config.head_dim)
    pages = (jnp.zeros(shape), jnp.zeros(shape))
    for size in sizes:
        piece = jnp.asarray(x[:, start : start + size])
        out, pages = program(piece, pages, jnp.full((1,), start, jnp.int32))
        outputs.append(np.asarray(out))
        start += size
    return np.concatenate(outputs, axis=1)


def dense(config: ModelConfig, window: int, x: np.ndarray) -> np.ndarray:
    """The same layer in float64 over all tokens at once."""
    weights, size = random_weights(config), config.head_dim
    arrays = {
        name: np.asarray(getattr(value, "value", value), np.float64)
        for name, value in weights.items()
    }
    angles = np.arange(TOKENS)[:, None, None] * 1e4 ** -(np.arange(0, size, 2) / size)

    def heads(name: str) -> np.ndarray:
        out = (x[0].astype(np.float64) @ arrays[name].T).reshape(TOKENS, -1, size)
        if config.qk_norm and name != "v":
            mean = (out**2).mean(axis=-1, keepdims=True) + config.norm_eps
            out = out / np.sqrt(mean) * arrays[f"{name}_norm"]
        if name == "v":
            return out
        turned = (out[..., : size // 2] + 1j * out[..., size // 2 :]) * np.exp(1j * angles)
        return np.concatenate([turned.real, turned.imag], axis=-1)

    group = config.num_heads // config.num_kv_heads
    q, k, v = heads("q"), *(np.repeat(heads(name), group, axis=1) for name in "kv")
    scores = np.einsum("qhd,chd->hqc", q, k) * config.attention_scale
    distance = np.arange(TOKENS)[:, None] - np.arange(TOKENS)[None, :]
    hidden = (distance < 0) | ((distance >= window) if window else False)
    weights_ = np.exp(np.where(hidden, -np.inf, scores))
    weights_ /= weights_.sum(axis=-1, keepdims=True)
    return np.einsum("hqc,chd->qhd", weights_, v).reshape(TOKENS, -1) @ arrays["o"].T


@pytest.mark.parametrize(("window", "qk_norm"), [(0, False), (5, True)])
def test_equals_dense_and_prefill_equals_decode(window: int, qk_norm: bool) -> None:
    config = model_config(qk_norm=qk_norm)
    x = np.random.default_rng(1).normal(size=(1, TOKENS, 64)).astype(np.float32)
    at_once = run(config, window, x, [TOKENS])
    np.testing.assert_allclose(at_once[0], dense(config, window, x), atol=1e-5)
    for sizes in ([1] * TOKENS, [7, 1, 1, 3]):
        np.testing.assert_array_equal(run(config, window, x, sizes), at_once)


@pytest.mark.parametrize("qk_norm", [False, True])
def test_keys_rotated_and_written_by_a_kernel(qk_norm: bool) -> None:
    """Two kv heads, rows of several tokens and one of none; the same pages and outputs."""
    sizes: dict[str, Any] = {"head_dim": 64, "num_heads": 4, "num_kv_heads": 2}
    config = model_config(**sizes, qk_norm=qk_norm)
    apart = random_weights(config)
    stacked = {name: one for name, one in apart.items() if name not in ("q", "k", "v")}
    stacked["qkv"] = Weight(value=jnp.concatenate([apart[name].value for name in ("q", "k", "v")]))
    random = np.random.default_rng(3)
    x = jnp.asarray(random.normal(size=(2, 3, 64)), jnp.bfloat16)
    starts, lengths = jnp.asarray([6, 0], jnp.int32), jnp.asarray([3, 0], jnp.int32)
    slots = page_slots(jnp.asarray([[3, 1], [2, 0]], jnp.int32), starts, lengths, 3, PAGE)
    rope = rope_table(RopeConfig(), starts[:, None] + jnp.arange(3, dtype=jnp.int32)[None], 64)
    shape = (5, 2, PAGE, 64)
    pages = tuple(jnp.asarray(random.normal(size=shape), jnp.bfloat16) for _ in "kv")

    def attend(weights: dict[str, Any], kernel: str) -> list[np.ndarray]:
        @jax.jit
        def program(x: jax.Array, pages: Any) -> Any:
            given: dict[str, Any] = {"config": config, "window": 0, "kernel": "reference"}
            parts, pages = paged_self_attention(
                x, weights, pages, slots, rope, write_kernel=kernel, **given
            )
            return add_parts(parts)[0], *(one[1:] for one in pages)  # page 0 holds anything

        return [np.asarray(one, np.float32) for one in program(x, pages)]

    expected = attend(apart, "reference")
    for found, wanted in zip(attend(stacked, "simulated"), expected, strict=True):
        difference = np.linalg.norm(found - wanted)
        assert difference <= KERNELS["bfloat16"] * np.linalg.norm(wanted)
