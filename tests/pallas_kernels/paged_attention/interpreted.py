"""`paged_attention` in Triton's interpreter against float64: run with TRITON_INTERPRET=1.

Pages of nobody, the null page and a page's unused end hold NaN in every case here. In
float32: the interpreter multiplies bfloat16 as if its bits were integers.
"""

import jax.numpy as jnp
import numpy as np
import torch

from pallas_kernels.paged_attention.cases import CASES, Case
from pallas_kernels.paged_attention.triton import (
    AttentionTiles,
    default_tiles,
    launch_options,
    merge_parts,
    paged_attention_kernel,
    sinks_by_row,
)
from tests.pallas_kernels.paged_attention.dense import (
    Problem,
    dense_attention,
    make_problem,
    make_sinks,
)
from tests.support.tolerances import KERNELS

# The interpreter takes its time: what each case is about shows at these.
NAMES = (
    "decode",
    "splits",
    "window",
    "softcap",
    "verify",
    "prefill",
    "sinks",
    "empty",
    "pages of 16",
)


def problem_of(case: Case) -> Problem:
    return make_problem(
        list(case.starts),
        list(case.lengths),
        num_queries=case.num_queries,
        num_heads=case.num_heads,
        num_kv_heads=case.num_kv_heads,
        head_dim=case.head_dim,
        page_tokens=case.page_tokens,
        table_columns=case.table_columns,
        window=case.window,
        poison=float("nan"),
    )


def run(case: Case, problem: Problem) -> np.ndarray:
    """What the kernel and the merge give, [B, Q, H, D]."""
    batch, queries, heads, dim = problem.q.shape
    group = heads // case.num_kv_heads
    grouped = problem.q.reshape(batch, queries, case.num_kv_heads, group, dim).swapaxes(1, 2)
    grouped = np.ascontiguousarray(grouped).reshape(batch, case.num_kv_heads, -1, dim)
    rows, table = grouped.shape[2], problem.table
    tiles = default_tiles(rows, dim, case.page_tokens)
    if case.split_tokens:
        sizes = {"block_rows": tiles.block_rows, "block_keys": tiles.block_keys}
        tiles = AttentionTiles(**sizes, split_tokens=case.split_tokens)
    options = launch_options(
        rows,
        group,
        problem.k_pages.shape,
        table.shape[1],
        tiles,
        scale=dim**-0.5,
        window=case.window,
        softcap=case.softcap,
    )
    splits = options["num_splits"]
    stats = (batch, case.num_kv_heads, splits, rows)
    outputs = [torch.empty(shape) for shape in ((*stats, dim), stats, stats)]
    floats = (torch.tensor(one) for one in (grouped, problem.k_pages, problem.v_pages))
    integers = (torch.tensor(one) for one in (table, problem.starts, problem.lengths))
    grid = (batch * case.num_kv_heads, splits, -(-rows // tiles.block_rows))
    paged_attention_kernel[grid](*floats, *integers, *outputs, **options)
    sinks = jnp.asarray(make_sinks(heads)) if case.has_sinks else None
    parts = (jnp.asarray(one.numpy()) for one in outputs)
    out = np.asarray(merge_parts(*parts, sinks_by_row(sinks, case.num_kv_heads, queries)))
    out = out.reshape(batch, case.num_kv_heads, queries, group, dim).swapaxes(1, 2)
    return out.reshape(problem.q.shape)


def check(case: Case) -> None:
    problem = problem_of(case)
    found = run(case, problem)
    exact = dense_attention(
        problem,
        scale=case.head_dim**-0.5,
        window=case.window,
        softcap=case.softcap,
        sinks=make_sinks(case.num_heads) if case.has_sinks else None,
    )
    for row, wanted in enumerate(exact):
        error = np.linalg.norm(found[row, : len(wanted)] - wanted)
        assert error <= KERNELS["float32"] * np.linalg.norm(wanted), (case, row, error)


def main() -> None:
    floats = [
        case for case in CASES if case.tier == "quick" and case.keys == case.values == "floats"
    ]
    chosen = [case for case in floats if any(name in case.name for name in NAMES)]
    assert len(chosen) > 4
    for case in chosen:
        if case.page_tokens >= 16:
            check(case)


if __name__ == "__main__":
    main()
