"""The forms that the simulator lacks: the same numbers as the device's, from plain jax."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.mosaic_compat import (
    add_matmul,
    full,
    iota,
    load,
    matmul_transposed,
    simulation,
    tile_transforms,
    tiled_smem,
)

WGMMA = plgpu.Layout.WGMMA


def test_products_and_indices_of_a_simulated_kernel() -> None:
    """out = iota over columns + (a · bᵀ as bfloat16) · b."""

    def kernel(a_gmem: Any, b_gmem: Any, out_gmem: Any, a_smem: Any, b_smem: Any, ready: Any):
        plgpu.copy_gmem_to_smem(a_gmem, a_smem, ready)
        plgpu.copy_gmem_to_smem(b_gmem, b_smem, ready)
        plgpu.barrier_wait(ready)
        calls = []
        scores = matmul_transposed(a_smem, b_smem, True, meanwhile=lambda: calls.append(1))
        column = iota((64, 64), 1, WGMMA, True).astype(jnp.float32)
        start = full((64, 64), 0.5, WGMMA, True) + column
        total = add_matmul(start, scores.astype(jnp.bfloat16), b_smem, True)
        assert calls == [1]
        out_gmem[...] = total + load(a_smem, WGMMA, True).astype(jnp.float32)

    random = np.random.default_rng(0)
    a, b = (jnp.asarray(random.integers(-2, 3, (64, 64)), jnp.bfloat16) for _ in range(2))
    run = plgpu.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct((64, 64), jnp.float32),
        scratch_types=[tiled_smem(64, 64), tiled_smem(64, 64), plgpu.Barrier(num_arrivals=2)],
        interpret=simulation(True),
    )
    wide_a, wide_b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    scores = np.asarray(jnp.asarray(wide_a @ wide_b.T, jnp.bfloat16), np.float64)
    expected = 0.5 + np.arange(64) + scores @ wide_b + wide_a
    np.testing.assert_array_equal(np.asarray(run(a, b), np.float64), expected)


def test_compiling_is_no_simulation() -> None:
    assert simulation(False) is None
    assert simulation(True).uninitialized_memory == "nan"


def test_a_tile_is_as_wide_as_the_swizzle() -> None:
    assert tile_transforms()[0].tiling == (8, 64)
    assert tile_transforms(jnp.float32)[0].tiling == (8, 32)
