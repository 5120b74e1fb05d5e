"""Attention in NumPy and float64 over keys and values in a row, and pages filled from them."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Arguments of `paged_attention`, and the keys and values that the pages were filled from."""

    q: np.ndarray  # [B, Q, H, D]
    k_pages: np.ndarray  # [P, K, S, D]
    v_pages: np.ndarray  # [P, K, S, D]
    table: np.ndarray  # [B, N]
    starts: np.ndarray  # [B]
    lengths: np.ndarray  # [B]
    keys: np.ndarray  # [B, C, K, D]
    values: np.ndarray  # [B, C, K, D]

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        return self.q, self.k_pages, self.v_pages, self.table, self.starts, self.lengths


def make_problem(
    starts: list[int],
    lengths: list[int],
    *,
    num_queries: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    page_tokens: int,
    table_columns: int = 0,
    window: int = 0,
    poison: float = 0.0,
    seed: int = 0,
) -> Problem:
    """Random pages, scattered over the pool; what no row may see holds `poison`.

    Pages that lie wholly behind a window are given up, as the scheduler does: their column in the
    table is the null page.
    """
    random = np.random.default_rng(seed)
    num_rows, longest = len(starts), max(s + n for s, n in zip(starts, lengths, strict=True))
    columns = max(table_columns, -(-longest // page_tokens), 1)
    shape = (num_rows, columns * page_tokens, num_kv_heads, head_dim)
    keys = random.normal(size=shape).astype(np.float32)
    values = random.normal(size=shape).astype(np.float32)
    q = random.normal(size=(num_rows, num_queries, num_heads, head_dim)).astype(np.float32)
    num_pages = 1 + num_rows * columns + 3
    paged = (num_pages, num_kv_heads, page_tokens, head_dim)
    k_pages, v_pages = (np.full(paged, poison, np.float32) for _ in range(2))
    free = random.permutation(np.arange(1, num_pages))
    table = np.zeros((num_rows, columns), np.int32)
    for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        end = start + length if length else 0
        first = max(0, start - window + 1) // page_tokens if window else 0
        for column in range(first, -(-end // page_tokens)):
            page, free = free[0], free[1:]
            table[row, column] = page
            span = slice(column * page_tokens, min(end, (column + 1) * page_tokens))
            used = span.stop - span.start
            k_pages[page, :, :used] = keys[row, span].swapaxes(0, 1)
            v_pages[page, :, :used] = values[row, span].swapaxes(0, 1)
    return Problem(
        q=q,
        k_pages=k_pages,
        v_pages=v_pages,
        table=table,
        starts=np.array(starts, np.int32),
        lengths=np.array(lengths, np.int32),
        keys=keys,
        values=values,
    )


def make_sinks(num_heads: int) -> np.ndarray:
    """[H] f32: some far below the scores, some among them, some far above."""
    return np.resize(np.array([0.5, -6.0, 2.5, 7.0], np.float32), num_heads)


def dense_attention(
    problem: Problem,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: np.ndarray | None = None,
) -> list[np.ndarray]:
    """The real queries' outputs of each row: a list of [lengths[b], H, D] float64."""
    group = problem.q.shape[2] // problem.keys.shape[2]
    keys, values = (
        np.repeat(x, group, axis=2).astype(np.float64) for x in (problem.keys, problem.values)
    )
    outputs = []
    for row, (start, length) in enumerate(zip(problem.starts, problem.lengths, strict=True)):
        seen = np.arange(start + length)
        distance = start + np.arange(length)[:, None] - seen[None, :]
        visible = (distance >= 0) & ((distance < window) if window else True)
        q = problem.q[row, :length].astype(np.float64)
        scores = np.einsum("qhd,chd->hqc", q, keys[row, : start + length]) * scale
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        scores = np.where(visible[None], scores, -np.inf)
        peak = scores.max(axis=-1, keepdims=True, initial=-1e300)
        weights = np.exp(scores - peak)
        sunk = 0.0 if sinks is None else np.exp(sinks[:, None, None] - peak)
        weights /= weights.sum(axis=-1, keepdims=True) + sunk if length else 1
        outputs.append(np.einsum("hqc,chd->qhd", weights, values[row, : start + length]))
    return outputs
