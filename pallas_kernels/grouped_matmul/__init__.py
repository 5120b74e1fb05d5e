"""Products of groups of rows with a matrix each."""

from pallas_kernels.grouped_matmul.api import (
    grouped_matmul,
    resolve_implementation,
    why_not_mosaic,
)

__all__ = ["grouped_matmul", "resolve_implementation", "why_not_mosaic"]
