"""Weight records: one structure for arrays, shapes and descriptions of leaves."""

import jax
import jax.numpy as jnp

from jaxinfer.layers.weights import BiasedWeight, Weight


def test_leaves_may_be_anything() -> None:
    arrays = BiasedWeight(value=jnp.zeros((2, 3)), bias=jnp.zeros(2))
    shapes = jax.eval_shape(lambda: arrays)
    names = BiasedWeight(value="matrix", bias="bias")  # type: ignore[arg-type]
    assert jax.tree.structure(arrays) == jax.tree.structure(shapes) == jax.tree.structure(names)
    assert jax.tree.leaves(names) == ["matrix", "bias"]
    assert jax.tree.structure(Weight(value=arrays.value)) != jax.tree.structure(arrays)
