"""A rounded product is added with two roundings, as NumPy does, not with one."""

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.rounding import rounded


def test_a_product_keeps_its_own_rounding() -> None:
    random = np.random.default_rng(0)
    a, b, c = (random.normal(size=(3, 1000)).astype(np.float32) for _ in range(3))
    found = jax.jit(lambda a, b, c: rounded(a * b) + c)(a, b, c)
    np.testing.assert_array_equal(np.asarray(found), a * b + c)


def test_values_pass_unchanged() -> None:
    values = jnp.asarray([0.0, -0.0, jnp.inf, -jnp.inf, 1e-45, 3e38], jnp.float32)
    assert np.asarray(jax.jit(rounded)(values)).tobytes() == np.asarray(values).tobytes()
    assert np.isnan(jax.jit(rounded)(jnp.float32(jnp.nan)))
