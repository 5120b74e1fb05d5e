"""HOST. Which part of a prompt lies in pages already: digests of full pages, chained.

    tokens    [ t0 .. t63 | t64 .. t127 | t128 .. ]        S = 64
    digests     d0 = h(t0..t63)    d1 = h(d0, t64..t127)   a page's digest names all before it too

A prefix is reused up to a multiple of both T and S, so that chunks keep their places. Under a
sliding window only the pages that the next token still sees have to be there. Knows pools and
digests; not requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from jaxinfer.config.geometry import Geometry
from jaxinfer.scheduler.page_pool import PagePool


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPages:
    """Pages of one cache group that a request takes over: columns from `first` on of its table."""

    first: int = 0
    pages: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """One past the last column."""
        return self.first + len(self.pages)

    def before(self, column: int) -> "SharedPages":
        """Those in columns before `column`."""
        return SharedPages(first=self.first, pages=self.pages[: max(0, column - self.first)])


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedPrefix:
    """How many tokens lie in pages, and those pages, a group each."""

    num_tokens: int
    groups: tuple[SharedPages, ...]


def extend_digests(digests: list[bytes], token_ids: Sequence[int], page_tokens: int) -> None:
    """Adds the digests of further full pages of `token_ids` to those of the first ones."""
    for column in range(len(digests), len(token_ids) // page_tokens):
        tokens = token_ids[column * page_tokens : (column + 1) * page_tokens]
        before = digests[-1] if digests else b""
        content = np.asarray(tokens, np.int32).tobytes()
        digests.append(blake2b(before + content, digest_size=16).digest())


def first_column(window: int, position: int, page_tokens: int) -> int:
    """The first page that the token at `position` still reads; all of them without a window."""
    return max(0, position - window + 1) // page_tokens if window else 0


def cached_prefix(
    pools: Sequence[PagePool], geometry: Geometry, digests: Sequence[bytes], max_tokens: int
) -> CachedPrefix | None:
    """The longest prefix of at most `max_tokens` tokens that every group still has, or None."""
    grain = max(geometry.chunk_tokens, geometry.page_tokens)
    longest = min(max_tokens, _held_by_full_groups(pools, geometry, digests))
    for num_tokens in range(longest // grain * grain, 0, -grain):
        groups = [
            _shared(pool, window, num_tokens, geometry.page_tokens, digests)
            for pool, window in zip(pools, geometry.group_windows, strict=True)
        ]
        if all(group is not None for group in groups):
            return CachedPrefix(num_tokens=num_tokens, groups=tuple(groups))  # type: ignore[arg-type]
    return None


def _held_by_full_groups(
    pools: Sequence[PagePool], geometry: Geometry, digests: Sequence[bytes]
) -> int:
    full = [pool for pool, window in zip(pools, geometry.group_windows, strict=True) if not window]
    for column, digest in enumerate(digests):
        if any(pool.find(digest) is None for pool in full):
            return column * geometry.page_tokens
    return len(digests) * geometry.page_tokens


def _shared(
    pool: PagePool, window: int, num_tokens: int, page_tokens: int, digests: Sequence[bytes]
) -> SharedPages | None:
    first = first_column(window, num_tokens, page_tokens)
    pages = [pool.find(digest) for digest in digests[first : num_tokens // page_tokens]]
    if any(page is None for page in pages):
        return None
    return SharedPages(first=first, pages=tuple(pages))  # type: ignore[arg-type]
