"""`grouped_matmul` on Mosaic GPU: the matrix of a group is read once for 64 of its rows, or not.

One program is one (group, block of outputs, tile of 64 rows); it brings blocks of the matrix and of
the rows `STAGES` ahead. A program without wanted rows ends at once, so that groups without any cost
nothing: in decode, where reading matrices is all the time there is, that is many of them.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.dispatch import Dtypes, Platform, Shapes, refuse, why_not_hopper
from pallas_kernels.grouped_matmul.tiles import TILE_ROWS
from pallas_kernels.mosaic_compat import simulation, tiled_smem

BLOCK_OUTPUTS = (128, 96, 64)  # of a program, the best first
BLOCK_INPUTS = 64  # 128 bytes: a row of a swizzled tile
STAGES = 6


def why_not(shapes: Shapes, dtypes: Dtypes, platform: Platform) -> str | None:
    """Why this implementation cannot serve a call, or None. Names: x, matrices."""
    return why_not_hopper(platform) or _why_not_arrays(shapes, dtypes)


def _why_not_arrays(shapes: Shapes, dtypes: Dtypes) -> str | None:
    _, outputs, inputs = shapes["matrices"]
    if inputs % BLOCK_INPUTS or not _block_outputs(outputs):
        return (
            f"matrices are [{outputs}, {inputs}]; it takes multiples of "
            f"{', '.join(map(str, BLOCK_OUTPUTS))} and of {BLOCK_INPUTS}"
        )
    if shapes["x"][1] % TILE_ROWS:
        return f"groups have {shapes['x'][1]} rows; it takes multiples of {TILE_ROWS}"
    if jnp.dtype(dtypes["matrices"]) != jnp.bfloat16:
        return f"matrices are {jnp.dtype(dtypes['matrices'])}; it takes bfloat16"
    return None


def _block_outputs(outputs: int) -> int:
    """Outputs of a program, 0 where no choice divides them. Example: 2880 → 96."""
    return next((block for block in BLOCK_OUTPUTS if outputs % block == 0), 0)


def grouped_matmul(
    x: jax.Array,
    matrices: jax.Array,
    counts: jax.Array,
    *,
    interpret: bool = False,
) -> jax.Array:
    """See `reference.grouped_matmul`."""
    shapes = {"x": x.shape, "matrices": matrices.shape}
    dtypes = {"x": x.dtype, "matrices": matrices.dtype}
    refuse("grouped_matmul", "mosaic", _why_not_arrays(shapes, dtypes))
    groups, rows, inputs = x.shape
    outputs = matrices.shape[1]
    block = _block_outputs(outputs)
    stages = min(STAGES, inputs // BLOCK_INPUTS)
    run = plgpu.kernel(
        functools.partial(_kernel, num_blocks=inputs // BLOCK_INPUTS, interpret=interpret),
        out_type=jax.ShapeDtypeStruct((groups, rows, outputs), jnp.float32),
        # Tiles of the same block of a matrix run one after the other: it is then in the L2 cache.
        grid=(rows // TILE_ROWS, outputs // block, groups),
        grid_names=("tile", "outputs", "group"),
        scratch_types=[
            tiled_smem(stages, TILE_ROWS, BLOCK_INPUTS),
            tiled_smem(stages, block, BLOCK_INPUTS),
            tiled_smem(TILE_ROWS, block, dtype=jnp.float32),
            plgpu.Barrier(num_arrivals=2, num_barriers=stages),
        ],
        kernel_name="grouped_matmul",
        interpret=simulation(interpret),
    )
    return run(x.astype(matrices.dtype), matrices, counts)


def _kernel(
    x_gmem: Any,
    matrices_gmem: Any,
    counts_gmem: Any,
    out_gmem: Any,
    x_smem: Any,
    matrix_smem: Any,
    out_smem: Any,
    ready: Any,
    *,
    num_blocks: int,
    interpret: bool,
) -> None:
    tile, block, group = (lax.axis_index(name) for name in ("tile", "outputs", "group"))
    rows = pl.ds(tile * TILE_ROWS, TILE_ROWS)
    stages, block_outputs = matrix_smem.shape[:2]
    outputs = pl.ds(block * block_outputs, block_outputs)

    def fetch(step: Any) -> None:
        buffer = lax.rem(jnp.int32(step), jnp.int32(stages))
        inputs = pl.ds(step * BLOCK_INPUTS, BLOCK_INPUTS)
        arrived = ready.at[buffer]
        plgpu.copy_gmem_to_smem(x_gmem.at[group, rows, inputs], x_smem.at[buffer], arrived)
        source = matrices_gmem.at[group, outputs, inputs]
        plgpu.copy_gmem_to_smem(source, matrix_smem.at[buffer], arrived)

    @pl.when(tile * TILE_ROWS < counts_gmem[group])
    def _compute() -> None:
        for ahead in range(stages):
            fetch(ahead)
        steps = (x_smem, matrix_smem, ready, fetch, num_blocks)
        out_smem[...] = _simulated_product(*steps) if interpret else _product(*steps)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(out_smem, out_gmem.at[group, rows, outputs])
        plgpu.wait_smem_to_gmem(0)


def _product(x_smem: Any, matrix_smem: Any, ready: Any, fetch: Any, num_blocks: int) -> jax.Array:
    """One product runs while the next is waited for; then what it has read is overwritten."""
    stages = x_smem.shape[0]

    def accumulate(accumulator: Any) -> jax.Array:
        @pl.loop(0, num_blocks)
        def _step(step: Any) -> None:
            buffer = lax.rem(step, jnp.int32(stages))
            plgpu.barrier_wait(ready.at[buffer])
            transposed = matrix_smem.at[buffer].transpose((1, 0))
            plgpu.wgmma(accumulator, x_smem.at[buffer], transposed)
            plgpu.wgmma_wait(1)  # the one before has read its buffers
            following = step - 1 + stages
            pl.when((step > 0) & (following < num_blocks))(lambda: fetch(following))

        return accumulator[...]

    shape = (TILE_ROWS, matrix_smem.shape[1])
    return pl.run_scoped(accumulate, plgpu.WGMMAAccumulatorRef(shape, jnp.float32))


def _simulated_product(
    x_smem: Any, matrix_smem: Any, ready: Any, fetch: Any, num_blocks: int
) -> jax.Array:
    """The same without wgmma, which the simulator does not run on transposed operands."""
    stages = x_smem.shape[0]

    def step(number: Any, total: jax.Array) -> jax.Array:
        buffer = lax.rem(number, jnp.int32(stages))
        plgpu.barrier_wait(ready.at[buffer])
        total = total + lax.dot_general(
            x_smem[buffer],
            matrix_smem[buffer],
            (((1,), (1,)), ((), ())),
            preferred_element_type=jnp.float32,
        )
        pl.when(number + stages < num_blocks)(lambda: fetch(number + stages))
        return total

    zeros = jnp.zeros((TILE_ROWS, matrix_smem.shape[1]), jnp.float32)
    return lax.fori_loop(0, num_blocks, step, zeros)
