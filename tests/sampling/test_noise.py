"""The noise of draws: the generator's published answers, jax's own bits, and the Gumbel law."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.sampling.noise import gumbel_noise, threefry

noise_program = jax.jit(gumbel_noise, static_argnums=3)


@pytest.mark.parametrize(
    ("key", "counter", "answer"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((2**32 - 1,) * 2, (2**32 - 1,) * 2, (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_gives_its_authors_answers(
    key: tuple[int, int], counter: tuple[int, int], answer: tuple[int, int]
) -> None:
    """Threefry-2x32 with 20 rounds, the known answers published with Random123."""
    words = [np.array([word], np.uint32) for word in (*key, *counter)]
    found = threefry((words[0], words[1]), (words[2], words[3]))  # type: ignore[arg-type]
    assert tuple(int(word[0]) for word in found) == answer


def test_the_bits_are_jax_s() -> None:
    seeds = np.array([[7, 0], [2**32 - 1, 2**31], [0, 5]], np.uint32)
    samples, positions = np.array([0, 3, 1], np.int32), np.array([0, 9, 2**20], np.int32)
    found = np.asarray(noise_program(seeds, samples, positions, 301))
    for row in range(3):
        key = jax.random.wrap_key_data(jnp.asarray(seeds[row]), impl="threefry2x32")
        key = jax.random.fold_in(jax.random.fold_in(key, samples[row]), positions[row])
        bits = np.asarray(jax.random.bits(key, (301,), jnp.uint32))
        exact = -np.log(-np.log(((bits >> 9) + 0.5) * 2.0**-23))
        np.testing.assert_allclose(found[row], exact, rtol=1e-5, atol=1e-6)


def test_noise_does_not_depend_on_the_rows_beside_it() -> None:
    seeds = np.random.default_rng(0).integers(2**32, size=(32, 2), dtype=np.uint32)
    samples, positions = np.arange(32, dtype=np.int32), np.arange(32, dtype=np.int32) * 3
    whole = np.asarray(noise_program(seeds, samples, positions, 1000))
    for rows in (2, 8):
        few = noise_program(seeds[:rows], samples[:rows], positions[:rows], 1000)
        np.testing.assert_array_equal(np.asarray(few), whole[:rows])


def test_noise_has_the_gumbel_law() -> None:
    """The largest gap to exp(-exp(-x)), against Kolmogorov's bound of one in a million."""
    size = 50_000
    seeds = np.array([[3, 0], [4, 0]], np.uint32)
    noise = np.asarray(noise_program(seeds, np.zeros(2, np.int32), np.zeros(2, np.int32), size))
    assert np.isfinite(noise).all()
    for row in noise.astype(np.float64):
        law = np.exp(-np.exp(-np.sort(row)))
        gap = np.abs(law - (np.arange(size) + 0.5) / size).max()
        assert gap < 2.7 / size**0.5
    assert abs(np.corrcoef(noise)[0, 1]) < 5 / size**0.5
