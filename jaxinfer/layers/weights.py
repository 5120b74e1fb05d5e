"""DEV. The weight records that `linear` runs. Another storage form is another record.

A `Weight` or `BiasedWeight` is a linear layer; its matrix is a plain array or one of the packed
records below. Behind `ModelConfig` a leaf of these records may be an array, a shape or a
`models.spec.Leaf`: the structure is the same for all three, and a packed record takes the place of
the leaf. `kernel` of a packed record is the implementation of `quant_matmul` that multiplies with
it (`matmul_kernels.with_kernels` decides it).
"""

from collections.abc import Callable

import jax
from flax import struct


@struct.dataclass
class QuantWeight:
    """Codes around zero: element = code · scale. The form that every quantized matrix is kept in.

    `codes` hold two signed 4-bit codes a byte (u8, the even column in the low half), or one code
    of 8 bits (i8, f8_e4m3fn): codes of 2 and 3 bits are stored in 4, of 5 and 6 bits in 8.
    """

    codes: jax.Array  # [out, ceil(in/2)] u8, or [out, in] i8 or f8_e4m3fn
    scales: jax.Array  # [ceil(in/group), out] f32, f16 or bf16, as the file has them
    bits: int = struct.field(pytree_node=False)  # of a stored code: 4 or 8
    group: int = struct.field(pytree_node=False)  # columns under one scale; the last may be short
    kernel: str = struct.field(pytree_node=False, default="auto")


@struct.dataclass
class ZeroPointWeight:
    """Codes around a code of their own: element = (code - zero) · scale."""

    codes: jax.Array  # as in QuantWeight
    scales: jax.Array  # as in QuantWeight
    zeros: jax.Array  # [ceil(in/group), out] i8
    bits: int = struct.field(pytree_node=False)
    group: int = struct.field(pytree_node=False)
    kernel: str = struct.field(pytree_node=False, default="auto")


@struct.dataclass
class OffsetWeight:
    """Codes above a float: element = (code - lowest code) · scale + offset (GGUF's Q4_1, Q4_K)."""

    codes: jax.Array  # as in QuantWeight
    scales: jax.Array  # as in QuantWeight
    offsets: jax.Array  # [ceil(in/group), out], dtype of the scales: what the lowest code means
    bits: int = struct.field(pytree_node=False)
    group: int = struct.field(pytree_node=False)
    kernel: str = struct.field(pytree_node=False, default="auto")


@struct.dataclass
class BlockScaledWeight:
    """One scale a rectangle of elements (block FP8): element = code · scale."""

    codes: jax.Array  # as in QuantWeight
    scales: jax.Array  # [ceil(in/group), ceil(out/out_group)] f32, f16 or bf16
    bits: int = struct.field(pytree_node=False)
    group: int = struct.field(pytree_node=False)  # columns of a block
    out_group: int = struct.field(pytree_node=False)  # rows of a block
    kernel: str = struct.field(pytree_node=False, default="auto")


GroupedWeight = QuantWeight | ZeroPointWeight | OffsetWeight | BlockScaledWeight


@struct.dataclass
class PermutedWeight:
    """Columns in the order in which they were quantized (GPTQ's act-order).

    Stored column j multiplies input `order[j]`.
    """

    order: jax.Array  # [in] i32, a permutation
    matrix: GroupedWeight


@struct.dataclass
class RoundedInputWeight:
    """A matrix whose inputs are rounded before the product (W8A8, FP8 with dynamic inputs).

    With a kernel of `coded_matmul_parts` the rounded inputs stay codes; "reference" makes floats of
    them, and multiplies with the matrix as without rounding.
    """

    matrix: GroupedWeight
    inputs: str = struct.field(pytree_node=False)  # "int8" or "fp8"
    input_group: int = struct.field(pytree_node=False)  # columns under one scale of a row
    kernel: str = struct.field(pytree_node=False, default="reference")


@struct.dataclass
class StreamedWeight:
    """A plain matrix that a kernel streams past the rows, where they are few."""

    value: jax.Array  # [out, in]
    kernel: str = struct.field(pytree_node=False)  # of `plain_matmul_parts`


PackedMatrix = GroupedWeight | PermutedWeight | RoundedInputWeight


@struct.dataclass
class ObservedMatrix:
    """A plain matrix whose inputs are shown to somebody, for calibration: `observe` is called with
    them while the program is traced, and may take them along into its outputs."""

    value: jax.Array  # [out, in]
    observe: Callable[[jax.Array], None] = struct.field(pytree_node=False)


Matrix = jax.Array | StreamedWeight | PackedMatrix | ObservedMatrix


@struct.dataclass
class Weight:
    """A linear layer."""

    value: Matrix  # [out, in]


@struct.dataclass
class BiasedWeight:
    """A linear layer with a bias."""

    value: Matrix  # [out, in]
    bias: jax.Array  # [out] f32


LinearWeight = Weight | BiasedWeight
