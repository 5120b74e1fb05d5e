"""`paged_attention` a few rows at a time: what a CPU runs.

The reference goes over the key blocks of the longest row with all rows at once. Here every group of
rows has its own range of blocks, and what a step touches stays in a core's cache. Where rows come
longest first, neighbours have similar ranges.

    blocks    0  1  2  3  4  5            two groups of 4 rows: 6·4 + 2·4 rows of blocks
    rows 0-3  ■  ■  ■  ■  ■  ■            instead of 6·8
    rows 4-7  ■  ■
"""

from typing import Any

import jax
from einops import rearrange
from jax import lax

from pallas_kernels.dispatch import Dtypes, Platform, Shapes
from pallas_kernels.paged_attention import reference
from pallas_kernels.paged_attention.pages import Pages

# Rows of a group, and query tokens that they have together; measured on two cores (bench/LOG.md).
MOST_ROWS = 4
MOST_QUERIES = 24


def why_not(shapes: Shapes, dtypes: Dtypes, platform: Platform) -> str | None:
    """Why this form is not for a platform, or None; it takes all shapes."""
    if platform.kind != "cpu":
        return f"groups of rows one after another would leave a {platform.kind} idle"
    return None


def group_rows(num_rows: int, num_queries: int) -> int:
    """Rows of a group: a divisor of all rows.

    Example: 32 rows of one query token → 4; 6 rows → 3; 4 rows of 64 query tokens → 1.
    """
    most = max(1, min(MOST_ROWS, MOST_QUERIES // num_queries))
    return max(size for size in range(1, most + 1) if num_rows % size == 0)


def paged_attention(
    q: jax.Array,
    k_pages: Pages,
    v_pages: Pages,
    table: jax.Array,
    starts: jax.Array,
    lengths: jax.Array,
    sinks: jax.Array | None = None,
    **options: Any,
) -> jax.Array:
    """As the reference, with its arguments and its bits."""
    size = group_rows(q.shape[0], q.shape[1])
    if size == q.shape[0]:
        arrays = (q, k_pages, v_pages, table, starts, lengths, sinks)
        return reference.paged_attention(*arrays, **options)

    def attend(group: tuple[jax.Array, ...]) -> jax.Array:
        rows, *places = group
        return reference.paged_attention(rows, k_pages, v_pages, *places, sinks=sinks, **options)

    groups = [
        rearrange(array, "(groups rows) ... -> groups rows ...", rows=size)
        for array in (q, table, starts, lengths)
    ]
    return rearrange(lax.map(attend, tuple(groups)), "groups rows ... -> (groups rows) ...")
