"""Attention of query rows against keys and values kept in pages."""

from pallas_kernels.paged_attention.api import (
    paged_attention,
    resolve_implementation,
    why_not_mosaic,
)
from pallas_kernels.paged_attention.pages import HeadScaledPages, Pages, TokenScaledPages

__all__ = [
    "HeadScaledPages",
    "Pages",
    "TokenScaledPages",
    "paged_attention",
    "resolve_implementation",
    "why_not_mosaic",
]
