"""Weight records: one structure for arrays, shapes and descriptions of leaves."""

import jax
import jax.numpy as jnp

from jaxinfer.layers.weights import BiasedWeight, QuantWeight, Weight


def test_leaves_may_be_anything() -> None:
    arrays = BiasedWeight(value=jnp.zeros((2, 3)), bias=jnp.zeros(2))
    shapes = jax.eval_shape(lambda: arrays)
    names = BiasedWeight(value="matrix", bias="bias")  # type: ignore[arg-type]
    assert jax.tree.structure(arrays) == jax.tree.structure(shapes) == jax.tree.structure(names)
    assert jax.tree.leaves(names) == ["matrix", "bias"]
    assert jax.tree.structure(Weight(value=arrays.value)) != jax.tree.structure(arrays)


def test_a_packed_record_stands_where_a_matrix_stands() -> None:
    """Its arrays are leaves; bits and group belong to the structure."""

    def weight(group: int) -> Weight:
        packed = QuantWeight(
            codes=jnp.zeros((2, 16), jnp.uint8), scales=jnp.ones((1, 2)), bits=4, group=group
        )
        return Weight(value=packed)

    assert [leaf.shape for leaf in jax.tree.leaves(weight(32))] == [(2, 16), (1, 2)]
    assert jax.tree.structure(weight(32)) != jax.tree.structure(weight(16))
    assert jax.tree.structure(jax.eval_shape(lambda: weight(32))) == jax.tree.structure(weight(32))
