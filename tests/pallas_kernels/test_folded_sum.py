"""The folded sum: right, and with the bits of its definition whatever stands beside a row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.folded_sum import folded_sum


def folded_in_numpy(values: np.ndarray) -> np.ndarray:
    """The definition, spelled out: pad with zeros to a power of two, add the halves."""
    width = 1
    while width < values.shape[-1]:
        width *= 2
    padded = np.zeros((*values.shape[:-1], width), values.dtype)
    padded[..., : values.shape[-1]] = values
    while padded.shape[-1] > 1:
        half = padded.shape[-1] // 2
        padded = padded[..., :half] + padded[..., half:]
    return padded


@pytest.mark.parametrize("size", [1, 3, 8, 576])
def test_is_its_definition_bit_for_bit(size: int) -> None:
    values = np.random.default_rng(size).normal(size=(5, size)).astype(np.float32)
    found = np.asarray(jax.jit(folded_sum)(values))
    assert found.shape == (5, 1)
    np.testing.assert_array_equal(found, folded_in_numpy(values))
    np.testing.assert_allclose(found[:, 0], values.sum(axis=-1, dtype=np.float64), atol=1e-4)


def test_more_axes_and_other_dtypes() -> None:
    values = jnp.ones((2, 3, 5), jnp.bfloat16)
    found = folded_sum(values)
    assert found.shape == (2, 3, 1) and found.dtype == jnp.bfloat16
    assert (found == 5).all()


def test_bits_do_not_depend_on_the_number_of_rows() -> None:
    values = np.random.default_rng(0).normal(size=(64, 576)).astype(np.float32)
    program = jax.jit(lambda x: folded_sum(x * x))
    whole = np.asarray(program(values))
    for rows in (1, 7, 33):
        np.testing.assert_array_equal(np.asarray(program(values[:rows])), whole[:rows])
