"""New queries, keys and values: normed, rotated, and keys and values written to their pages."""

from pallas_kernels.rotate_write.api import (
    resolve_implementation,
    rotate_write,
    why_not_mosaic,
)
from pallas_kernels.rotate_write.reference import HeadNorms

__all__ = ["HeadNorms", "resolve_implementation", "rotate_write", "why_not_mosaic"]
