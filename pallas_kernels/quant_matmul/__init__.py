"""A product with a matrix that is kept as codes of 4 or 8 bits."""

from pallas_kernels.quant_matmul.api import (
    coded_matmul_parts,
    plain_matmul_parts,
    quant_matmul,
    quant_matmul_parts,
    resolve_coded,
    resolve_implementation,
    resolve_plain,
    stacked_quant_matmul,
    why_not,
    why_not_coded,
    why_not_plain,
)
from pallas_kernels.quant_matmul.reference import dequantize

__all__ = [
    "coded_matmul_parts",
    "dequantize",
    "plain_matmul_parts",
    "quant_matmul",
    "quant_matmul_parts",
    "resolve_coded",
    "resolve_implementation",
    "resolve_plain",
    "stacked_quant_matmul",
    "why_not",
    "why_not_coded",
    "why_not_plain",
]
