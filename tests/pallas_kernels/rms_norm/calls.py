"""Random rows for `rms_norm`, and their norms in float64."""

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.rms_norm.cases import Case
from tests.support.tolerances import KERNELS

EPS = 1e-6


def drawn(case: Case, seed: int) -> jax.Array:
    values = np.random.default_rng(seed).normal(size=(case.rows, case.columns))
    return jnp.asarray(values * case.deviation, jnp.dtype(case.dtype))


def weights(columns: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(9).normal(size=columns), jnp.float32)


def exact(x: jax.Array, weight: jax.Array) -> np.ndarray:
    wide = np.asarray(x, np.float64)
    mean = (wide**2).mean(axis=-1, keepdims=True)
    return wide / np.sqrt(mean + EPS) * np.asarray(weight, np.float64)


def assert_close(found: jax.Array, expected: np.ndarray) -> None:
    difference = np.linalg.norm(np.asarray(found, np.float64) - expected)
    assert difference <= KERNELS[str(found.dtype)] * np.linalg.norm(expected)
