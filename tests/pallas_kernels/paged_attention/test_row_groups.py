"""The form for a CPU: the reference's bits, a few rows at a time."""

from typing import Any

import jax
import numpy as np
import pytest

from pallas_kernels.dispatch import HOPPER, Platform
from pallas_kernels.paged_attention import reference, row_groups
from tests.pallas_kernels.paged_attention.dense import make_problem

SHAPE: dict[str, Any] = dict(num_heads=6, num_kv_heads=2, head_dim=16, page_tokens=16)


@pytest.mark.parametrize(
    ("rows", "queries", "size"),
    [(32, 1, 4), (2, 1, 2), (6, 1, 3), (7, 1, 1), (8, 6, 4), (8, 12, 2), (4, 64, 1), (1, 64, 1)],
)
def test_groups_divide_the_rows(rows: int, queries: int, size: int) -> None:
    assert row_groups.group_rows(rows, queries) == size


@pytest.mark.parametrize(
    ("options", "sinks"),
    [({}, None), ({"window": 20}, None), ({"softcap": 2.0}, np.arange(6, dtype=np.float32))],
    ids=str,
)
@pytest.mark.parametrize("queries", [1, 16])
def test_the_same_bits_as_all_rows_at_once(
    queries: int, options: dict[str, Any], sinks: np.ndarray | None
) -> None:
    """Rows long and short, an empty one and one in its first block among them."""
    starts = [130, 0, 200, 7, 64, 63, 0, 140]
    lengths = [queries] * 6 + [0, max(1, queries - 3)]
    problem = make_problem(starts, lengths, num_queries=queries, **SHAPE)
    found, expected = (
        jax.jit(lambda *arrays, one=one: one(*arrays, scale=0.25, **options))(
            *problem.arrays, sinks
        )
        for one in (row_groups.paged_attention, reference.paged_attention)
    )
    for row, length in enumerate(lengths):
        np.testing.assert_array_equal(found[row, :length], expected[row, :length])


def test_only_a_cpu_takes_rows_one_group_after_another() -> None:
    assert row_groups.why_not({}, {}, Platform(kind="cpu")) is None
    assert "idle" in (row_groups.why_not({}, {}, HOPPER) or "")
