"""`paged_attention` on Mosaic GPU: what it can do, and which of its two kernels does it.

A decode or verify step, whose query rows of a kv head fit in one tile, is bound by bandwidth; a
prefill step by arithmetic. Knows no engine: pages, table and lengths say everything.
"""

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.dispatch import Dtypes, Platform, Shapes, refuse, why_not_hopper
from pallas_kernels.paged_attention.mosaic_blocks import BlockShape
from pallas_kernels.paged_attention.mosaic_codes import FLOATS, kind_of
from pallas_kernels.paged_attention.mosaic_decode import decode_attention
from pallas_kernels.paged_attention.mosaic_prefill import prefill_attention
from pallas_kernels.paged_attention.pages import Pages, code_array
from pallas_kernels.paged_attention.tiles import (
    HEAD_DIMS,
    MAX_COLUMNS,
    DecodeTiles,
    PrefillTiles,
    decode_tiles,
    is_decode,
    prefill_tiles,
)

MIN_PAGE_TOKENS = 8  # rows of one tile in shared memory
MIN_SCALED_TOKENS = 64  # their scales are one aligned copy of 128 bytes
_PAGES = ("bfloat16", "int8", "float8_e4m3fn")


def why_not(shapes: Shapes, dtypes: Dtypes, platform: Platform) -> str | None:
    """Why this implementation cannot serve a call, or None. Names: q, k_pages, v_pages."""
    return why_not_hopper(platform) or _why_not_arrays(shapes, dtypes)


def _why_not_arrays(shapes: Shapes, dtypes: Dtypes) -> str | None:
    head_dim, page_tokens = shapes["q"][-1], shapes["k_pages"][2]
    kinds = {name: str(jnp.dtype(dtypes[name])) for name in ("q", "k_pages", "v_pages")}
    if kinds["q"] != "bfloat16":
        return f"q is {kinds['q']}; it takes bfloat16"
    for name in ("k_pages", "v_pages"):
        if kinds[name] not in _PAGES:
            return f"{name} is {kinds[name]}; it takes {', '.join(_PAGES)}"
    if head_dim not in HEAD_DIMS:
        return f"heads have {head_dim} values; it takes {', '.join(map(str, HEAD_DIMS))}"
    least = MIN_SCALED_TOKENS if "int8" in kinds.values() else MIN_PAGE_TOKENS
    if page_tokens < least or page_tokens & (page_tokens - 1):
        what = "int8 pages" if least == MIN_SCALED_TOKENS else "pages"
        return f"{what} hold {page_tokens} tokens; it takes powers of two from {least}"
    return None


def paged_attention(
    q: jax.Array,
    k_pages: Pages,
    v_pages: Pages,
    table: jax.Array,
    starts: jax.Array,
    lengths: jax.Array,
    sinks: jax.Array | None = None,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    tiles: DecodeTiles | PrefillTiles | None = None,
    interpret: bool = False,
) -> jax.Array:
    """See `reference.paged_attention`; arrays are bfloat16, or int8 or fp8 codes with scales.

    Args:
        tiles: sizes for the kernel that the call goes to (see `is_decode`); None for the defaults.
        interpret: simulate on the CPU.

    Raises:
        ValueError: shapes or dtypes that it does not take, tiles of the other kernel.
    """
    arrays = {"q": q, "k_pages": code_array(k_pages), "v_pages": code_array(v_pages)}
    shapes = {name: array.shape for name, array in arrays.items()}
    dtypes = {name: array.dtype for name, array in arrays.items()}
    refuse("paged_attention", "mosaic", _why_not_arrays(shapes, dtypes))
    head_dim = q.shape[3]
    decodes = is_decode(q.shape[1], q.shape[2], shapes["k_pages"][1])
    has_codes = {kind_of(k_pages), kind_of(v_pages)} != {FLOATS}
    if tiles is None:
        tiles = _default_tiles(head_dim, decodes, not (window or softcap), has_codes)
    _check_tiles(tiles, decodes, has_codes)
    shape = BlockShape(
        block_keys=tiles.block_keys,
        page_tokens=shapes["k_pages"][2],
        head_dim=head_dim,
        columns=min(head_dim, MAX_COLUMNS),
        scale=scale,
        window=window,
        softcap=softcap,
        interpret=interpret,
    )
    run: Any = decode_attention if decodes else prefill_attention
    return run(q, k_pages, v_pages, table, starts, lengths, sinks, shape=shape, tiles=tiles)


def _default_tiles(
    head_dim: int, decodes: bool, is_plain: bool, has_codes: bool
) -> DecodeTiles | PrefillTiles:
    if decodes:
        return decode_tiles(head_dim, has_codes=has_codes)
    return prefill_tiles(head_dim, is_plain=is_plain, has_codes=has_codes)


def _check_tiles(tiles: DecodeTiles | PrefillTiles, decodes: bool, has_codes: bool) -> None:
    if isinstance(tiles, DecodeTiles) != decodes:
        kernel = "decode" if decodes else "prefill"
        raise ValueError(f"tiles={tiles} do not fit: this call goes to the {kernel} kernel")
    if (tiles.code_stages > 0) != has_codes:
        rule = "at least 1 where pages hold codes, else 0"
        raise ValueError(f"tiles={tiles} do not fit: code_stages must be {rule}")
