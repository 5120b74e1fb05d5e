"""One Mosaic GPU for all kernels: jax 0.10.2 to 0.12, compiled or simulated on a CPU.

The only file that may reach into `jax._src`. Every function that takes `interpret` does on the
device what its name says, and the same arithmetic in plain jax where the simulator lacks the form:
layouts (it has none), wgmma with a transposed operand, with one from registers or on top of an
accumulator. Knows no op.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

try:
    from jax.experimental.pallas.mosaic_gpu import InterpretGPUParams  # type: ignore
except ImportError:  # jax 0.10
    from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams

# jax 0.10: `load` must be given indices; later it takes a ref without any.
_indices = inspect.signature(plgpu.load).parameters.get("idx")
LOAD_NEEDS_INDICES = _indices is not None and _indices.default is inspect.Parameter.empty
SWIZZLE_BYTES = 128  # the widest pattern that spreads a tile's rows over the memory banks


def _nothing() -> None:
    """What a product does meanwhile, where there is nothing to do."""


def simulation(interpret: bool, *, detect_races: bool = False) -> Any:
    """The value for `plgpu.kernel(interpret=…)`: None compiles; True simulates on the CPU.

    The simulation starts with NaN in all memory that nothing has written, and raises where a kernel
    reads past the end of a buffer.
    """
    return InterpretGPUParams(detect_races=detect_races) if interpret else None


def update_in_place(
    body: Callable[..., None],
    arrays: list[jax.Array],
    updated: list[jax.Array],
    *,
    out_type: Any,
    scratch_types: list[Any],
    compiler_params: Any,
    interpret: bool,
    **mesh: Any,
) -> tuple[jax.Array, list[jax.Array]]:
    """A kernel that overwrites parts of arrays: its output, and the updated arrays.

    `body` takes the arrays, the updated ones, the output and the scratch. (`plgpu.kernel` takes no
    references.)
    """

    def with_scratch(*refs: Any) -> None:
        pl.run_scoped(functools.partial(body, *refs), *scratch_types, collective_axes=())

    run = pl.kernel(
        with_scratch,
        out_type=(out_type,),
        mesh=plgpu.Mesh(**mesh),
        compiler_params=compiler_params,
        interpret=simulation(interpret) or False,
        name=mesh["kernel_name"],
    )
    refs = [jax.new_ref(array, memory_space=plgpu.GMEM) for array in updated]
    made: Any = run(*arrays, *refs)
    return made[0], [jax.freeze(ref) for ref in refs]


def tile_transforms(dtype: Any = jnp.bfloat16, columns: int = SWIZZLE_BYTES) -> tuple[Any, Any]:
    """How a [rows, columns] block lies in shared memory for copies and for wgmma.

    Rows must be a multiple of 8, a row's bytes of 128; or they are 64 or 32. Elements may be
    smaller than a byte.
    """
    bits = jnp.iinfo(dtype).bits if jnp.issubdtype(dtype, jnp.integer) else jnp.finfo(dtype).bits
    swizzle = min(SWIZZLE_BYTES, columns * bits // 8)
    return plgpu.TilingTransform((8, swizzle * 8 // bits)), plgpu.SwizzleTransform(swizzle)


def tiled_smem(*shape: int, dtype: Any = jnp.bfloat16, tile_columns: int = 0) -> Any:
    """Shared memory for blocks that `tile_transforms` describes.

    tile_columns: columns that may be cut out at once; by default all of a row.
    """
    return plgpu.SMEM(shape, dtype, transforms=tile_transforms(dtype, tile_columns or shape[-1]))


def shared_union(*groups: Any, interpret: bool) -> Any:
    """Groups of shared memory that are never alive together, in one place.

    The simulator has no unions before jax 0.12: there each group gets its own memory.
    """
    return list(groups) if interpret else plgpu.RefUnion(*groups)


def full(shape: tuple[int, ...], value: float, layout: Any, interpret: bool) -> jax.Array:
    """A float32 array of one value in registers of that layout."""
    filled = jnp.full(shape, value, jnp.float32)
    return filled if interpret else plgpu.layout_cast(filled, layout)


def iota(shape: tuple[int, ...], axis: int, layout: Any, interpret: bool) -> jax.Array:
    """Indices along `axis`, int32, in registers of that layout."""
    if interpret:
        return lax.broadcasted_iota(jnp.int32, shape, axis)
    return plgpu.broadcasted_iota(jnp.int32, shape, axis, layout=layout)


def load(ref: Any, layout: Any, interpret: bool, *, optimized: bool = True) -> jax.Array:
    """A ref's content in registers of that layout; optimized: refuses what has no fast form."""
    if interpret:
        return ref[...]
    options = {"layout": layout, "optimized": optimized}
    if LOAD_NEEDS_INDICES:
        return plgpu.load(ref, (), **options)
    return plgpu.load(ref, **options)  # type: ignore[call-arg]  # of the other releases


def store_transposed(ref: Any, value: jax.Array, interpret: bool) -> None:
    """Writes valueᵀ: a value [M, N] in registers (WGMMA) to a tiled ref [N, M] in shared memory."""
    if interpret:
        ref[...] = value.T
    else:
        turned = plgpu.layout_cast(value, plgpu.Layout.WGMMA_TRANSPOSED)
        ref.transpose((1, 0))[...] = turned


def matmul_transposed(
    a: Any, b: Any, interpret: bool, *, meanwhile: Callable[[], None] = _nothing
) -> jax.Array:
    """a @ bᵀ, both refs in shared memory: [M, D] and [N, D] → [M, N] as WGMMA.

    In float32; of integers in int32. `meanwhile` runs while the tensor cores work.
    """
    wide = jnp.int32 if a.dtype == jnp.int8 else jnp.float32
    if interpret:
        meanwhile()
        return lax.dot_general(
            a[...], b[...], (((1,), (1,)), ((), ())), preferred_element_type=wide
        )

    def product(accumulator: Any) -> jax.Array:
        plgpu.wgmma(accumulator, a, b.transpose((1, 0)))
        meanwhile()
        return accumulator[...]

    return pl.run_scoped(product, plgpu.WGMMAAccumulatorRef((a.shape[0], b.shape[0]), wide))


def matmul_registers(a: jax.Array, b: Any, interpret: bool) -> jax.Array:
    """a @ bᵀ in float32: a [M, K] in registers, b [N, K] a ref in shared memory → [M, N]."""
    if interpret:
        return lax.dot_general(
            a, b[...], (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
        )

    def product(accumulator: Any) -> jax.Array:
        plgpu.wgmma(accumulator, a, b.transpose((1, 0)))
        return accumulator[...]

    return pl.run_scoped(product, plgpu.WGMMAAccumulatorRef((a.shape[0], b.shape[0]), jnp.float32))


def add_matmul(
    total: jax.Array,
    a: jax.Array,
    b: Any,
    interpret: bool,
    *,
    meanwhile: Callable[[], None] = _nothing,
) -> jax.Array:
    """total + a @ b in float32: a [M, N] in registers, b [N, D] a ref in shared memory.

    `meanwhile` runs while the tensor cores work.
    """
    if interpret:
        meanwhile()
        return total + lax.dot_general(
            a, b[...], (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32
        )

    def product(accumulator: Any) -> None:
        plgpu.wgmma(accumulator, a, b)
        meanwhile()

    return pl.run_state(product)(plgpu.WGMMAAccumulatorRef.init(total))  # type: ignore
