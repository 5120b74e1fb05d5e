"""Attention of query rows against keys and values kept in pages."""

from pallas_kernels.paged_attention.api import paged_attention, resolve_implementation

__all__ = ["paged_attention", "resolve_implementation"]
