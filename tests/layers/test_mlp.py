"""The gated mlp and its nonlinearities against float64."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.config.model_config import Activation, ClampedSwiglu
from jaxinfer.errors import CheckpointError
from jaxinfer.layers.mlp import activate, gated, gated_mlp
from jaxinfer.layers.weights import Weight


def exact_activation(x: np.ndarray, activation: Activation) -> np.ndarray:
    if activation == "silu":
        return x / (1 + np.exp(-x))
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_equals_float64(activation: Activation) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(2, 3, 16)).astype(np.float32)
    gate, up = (random.normal(size=(24, 16)).astype(np.float32) for _ in range(2))
    down = random.normal(size=(16, 24)).astype(np.float32)
    weights = {
        name: Weight(value=jnp.asarray(value))
        for name, value in (("gate", gate), ("up", up), ("down", down))
    }
    found = np.asarray(gated_mlp(jnp.asarray(x), weights, activation))
    wide = x.astype(np.float64)
    exact = (exact_activation(wide @ gate.T, activation) * (wide @ up.T)) @ down.T
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-4)


def test_a_clamped_gate_equals_float64() -> None:
    """The gate is held from above alone, what it gates from both sides."""
    gate, up = np.random.default_rng(0).normal(0, 4, (2, 500)).astype(np.float32)
    found = np.asarray(gated(jnp.asarray(gate), jnp.asarray(up), ClampedSwiglu(slope=1.7, limit=3)))
    held, other = np.minimum(gate.astype(np.float64), 3), np.clip(up.astype(np.float64), -3, 3)
    exact = held / (1 + np.exp(-1.7 * held)) * (other + 1)
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-6)
    assert (np.abs(gate) > 3).any() and (np.abs(up) > 3).any()


def test_a_limit_must_be_positive() -> None:
    with pytest.raises(CheckpointError, match="swiglu_limit=0"):
        ClampedSwiglu(slope=1.702, limit=0)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_large_inputs_do_not_overflow(activation: Activation) -> None:
    x = jnp.asarray([-1e4, -100.0, 0.0, 100.0, 1e4], jnp.float32)
    found = np.asarray(activate(x, activation))
    np.testing.assert_allclose(found, [0, 0, 0, 100, 1e4], atol=1e-6)
