"""One step of `quant_matmul` on Mosaic GPU: codes of a few columns are widened, multiplied, scaled.

Knows what lies in shared memory, not how it got there.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.mosaic_compat import load, matmul_registers
from pallas_kernels.quant_matmul.tiles import BLOCK_OUT, QuantTiles

WGMMA = plgpu.Layout.WGMMA
LOWEST = {4: -8.0, 8: -128.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Static sizes of one call.

    block_in: columns of a step. segment: of them, those that are summed before they are scaled.
    bits: of a code. addend: "none", "zeros" or "offsets". splits: programs along the columns.
    stack: matrices, each with rows of its own; 0 for one, whose arrays have no axis for it.
    """

    columns: int
    group: int
    block_in: int
    bits: int
    addend: str
    splits: int
    tiles: QuantTiles
    interpret: bool
    stack: int = 0

    @property
    def segment(self) -> int:
        return min(self.group, self.block_in)

    @property
    def num_segments(self) -> int:
        """Of one step."""
        return self.block_in // self.segment

    @property
    def outputs(self) -> int:
        return self.tiles.warpgroups * BLOCK_OUT

    @property
    def num_blocks(self) -> int:
        return self.columns // self.block_in

    @property
    def split_blocks(self) -> int:
        return -(-self.num_blocks // self.splits)


def add_step(total: jax.Array, smem: list[Any], this: Any, blocks: Blocks) -> jax.Array:
    """The total with one step of this warpgroup's outputs."""
    x_smem, codes_smem, scales_smem, *addend_smem = smem
    mine = pl.ds(this * BLOCK_OUT, BLOCK_OUT)
    codes = load(codes_smem.at[mine], WGMMA, blocks.interpret).astype(jnp.bfloat16)
    for number in range(blocks.num_segments):
        start = number * blocks.segment
        part = codes
        if blocks.num_segments > 1:
            part = lax.slice(codes, (0, start), (BLOCK_OUT, start + blocks.segment))
        x_part = x_smem.at[:, pl.ds(start, blocks.segment)]
        product = matmul_registers(part, x_part, blocks.interpret)
        scale = _of_outputs(scales_smem.at[number, mine], blocks)
        total = total + product * lax.broadcast_in_dim(scale, product.shape, [0])
        if addend_smem:
            shift = _shift(_of_outputs(addend_smem[0].at[number, mine], blocks), scale, blocks)
            layout = WGMMA.reduce(0)
            sums = load(addend_smem[1].at[number], layout, blocks.interpret)
            shifts = lax.broadcast_in_dim(shift, product.shape, [0])
            total = total + shifts * lax.broadcast_in_dim(sums, product.shape, [1])
    return total


def _of_outputs(ref: Any, blocks: Blocks) -> jax.Array:
    """[64] f32, a value of each output."""
    return load(ref, WGMMA.reduce(1), blocks.interpret).astype(jnp.float32)


def _shift(addend: jax.Array, scale: jax.Array, blocks: Blocks) -> jax.Array:
    """What every element of a group has beside code · scale."""
    if blocks.addend == "zeros":
        return -(addend * scale)
    return addend - scale * jnp.float32(LOWEST[blocks.bits])
