"""A product with a matrix that is kept as codes of 4 or 8 bits."""

from pallas_kernels.quant_matmul.api import (
    quant_matmul,
    resolve_implementation,
    stacked_quant_matmul,
)
from pallas_kernels.quant_matmul.reference import dequantize

__all__ = ["dequantize", "quant_matmul", "resolve_implementation", "stacked_quant_matmul"]
