"""The op by name: which implementations there are, and that options arrive."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.dispatch import HOPPER, Platform
from pallas_kernels.paged_attention import paged_attention, reference, resolve_implementation
from tests.pallas_kernels.paged_attention.dense import make_problem

SHAPE = dict(num_queries=2, num_heads=2, num_kv_heads=1, head_dim=16, page_tokens=8)


@pytest.mark.parametrize("implementation", ["auto", "reference"])
def test_options_arrive(implementation: str) -> None:
    arrays = jax.tree.map(jnp.asarray, make_problem([20, 3], [2, 2], **SHAPE).arrays)
    options = {"scale": 0.5, "window": 4, "softcap": 1.5}
    sinks = jnp.ones(2, jnp.float32)
    found = paged_attention(*arrays, sinks, implementation=implementation, **options)  # type: ignore
    expected = reference.paged_attention(*arrays, sinks, **options)  # type: ignore[arg-type]
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


def test_an_unknown_implementation_lists_the_known() -> None:
    problem = make_problem([0], [1], **SHAPE)
    with pytest.raises(ValueError, match="no implementation .cuda.; it has: auto, reference,"):
        paged_attention(*problem.arrays, scale=1.0, implementation="cuda")  # type: ignore[arg-type]


def test_groups_of_rows_are_refused_where_they_would_leave_a_gpu_idle() -> None:
    pages = dict.fromkeys(("k_pages", "v_pages"), (9, 2, 16, 64))
    shapes, dtypes = {"q": (1, 1, 4, 64)} | pages, dict.fromkeys(("q", *pages), "bfloat16")
    options = ("row_groups", shapes, dtypes)
    assert resolve_implementation(*options, Platform(kind="cpu")) == "row_groups"
    with pytest.raises(ValueError, match="cannot use 'row_groups': .*leave a gpu idle"):
        resolve_implementation(*options, HOPPER)
